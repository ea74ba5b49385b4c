"""Rescue: finds jobs that nobody runs any more."""
