"""Simulation: processes, databases, threads and clocks on virtual time."""
