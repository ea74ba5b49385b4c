"""Memory broker: a broker on virtual time, for scenarios and simulations."""
