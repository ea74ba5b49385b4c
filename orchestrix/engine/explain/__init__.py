"""Explanations: what a saga waits for, and what helps."""
