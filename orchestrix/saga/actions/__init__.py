"""Actions: what a person may do to a saga, and what follows; `orchestrix.engine.control` stores it."""
