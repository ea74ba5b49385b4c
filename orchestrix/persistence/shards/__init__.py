"""The rows of shard services: members, generations, and who has which shards."""
