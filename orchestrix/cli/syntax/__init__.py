"""Syntax: how commands are declared and read."""
