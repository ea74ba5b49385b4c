"""The executor registry over HTTP: heartbeats, groups and routing."""
