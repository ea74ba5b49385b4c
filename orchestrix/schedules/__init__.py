"""Schedules: jobs that begin by the clock."""
