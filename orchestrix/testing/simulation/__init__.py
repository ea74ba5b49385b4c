"""Simulation: processes, network and clocks on virtual time."""
