"""Services of shards over HTTP: who has which shards, and the history of their generations."""
