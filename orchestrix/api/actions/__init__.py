"""Actions: what an operator can do to a saga, and sending commands again."""
