"""Executor jobs: the reports of executors, and the calls by which they get their attempts."""
