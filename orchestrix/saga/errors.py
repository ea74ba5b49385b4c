"""Saga errors: what a definition or a transition can raise; the whole tree is drawn in `orchestrix/errors.py`."""


class OrchestrixError(Exception):
    """Root of every error that Orchestrix raises on purpose. Its text is one sentence for a person."""


class DefinitionError(OrchestrixError):
    """A saga definition is wrong. Raised when the module that holds it is imported."""


class IllegalTransition(OrchestrixError):
    """The state machine has no such transition. Nothing was changed."""
