"""Actions: what a person may do to a saga, and what follows."""
