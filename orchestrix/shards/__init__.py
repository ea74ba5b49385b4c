"""Shards: which member of a service works on which part of it."""
