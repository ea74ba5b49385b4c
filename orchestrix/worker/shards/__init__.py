"""Shard member: the side of a process that is given shards."""
