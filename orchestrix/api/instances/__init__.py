"""Instances: what apps, other declared resources and sagas of any name have in common."""
