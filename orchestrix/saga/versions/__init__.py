"""Versions: a definition as data, and the move of instances from one version to another."""
