"""The cluster in the database: nodes, leases, heartbeats."""
