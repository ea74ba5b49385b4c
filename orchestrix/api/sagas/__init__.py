"""Sagas: the catalogue, and the calls for instances of any saga."""
