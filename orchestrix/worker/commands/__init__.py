"""Commands: the worker's side of a saga's steps."""
