"""Pure rules of the executor registry: states, addresses and routing."""
