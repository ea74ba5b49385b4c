"""Rescue: finds jobs that no worker runs any more."""
