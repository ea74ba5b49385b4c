"""Monitoring: metrics and health of workers, and of nodes without HTTP API, at a port of their own."""
