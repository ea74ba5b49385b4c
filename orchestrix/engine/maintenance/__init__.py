"""Maintenance: what keeps the rows of sagas in order, beside their work."""
