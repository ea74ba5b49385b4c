"""What is a saga, and which transitions does it have? Pure rules: no I/O, no clock, no async."""
