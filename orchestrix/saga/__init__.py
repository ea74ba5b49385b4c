"""What is a saga, and which moves does it have?  Pure rules: no I/O, no clock, no async."""
