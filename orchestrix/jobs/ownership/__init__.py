"""Ownership: which node has which job, and how it hands it off."""
