"""Sagas: what the service brings about, each in a module of its own."""
