"""Versions: a definition as data, and the migration of instances from one version to another."""
