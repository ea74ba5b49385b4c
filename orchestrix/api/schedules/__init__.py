"""Schedules: jobs that start by themselves."""
