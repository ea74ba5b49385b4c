"""Memory broker: on virtual time, for scenarios."""
