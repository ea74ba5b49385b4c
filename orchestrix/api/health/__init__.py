"""Health: whether the process is alive, and whether it can take work."""
