"""Outbox: what is committed is published, once at least."""
