"""Deadlines: what the engine will do by itself, and when."""
