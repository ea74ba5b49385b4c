"""Audit: what people have done, and why."""
