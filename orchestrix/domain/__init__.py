"""Which rules of the cluster need neither a clock nor a server?  Pure functions over values that they are given."""
