"""Executor: registers the HTTP address of an executor with the cluster, and keeps it registered."""
