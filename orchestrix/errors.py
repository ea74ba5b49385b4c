"""Which errors can Orchestrix raise, and what should the caller do about each?

OrchestrixError                 (orchestrix.saga.errors) root of all
├── DefinitionError             (orchestrix.saga.errors) a saga is wrong; found at import
├── IllegalTransition           (orchestrix.saga.errors) the state machine was asked for a move that it does not have
├── RetryLater                  try again, the same call can succeed
│   ├── Contention              the database ended one of two transactions that were in each other's way
│   └── Unavailable             database or broker is away, slow or full
│       └── OutcomeUnknown      the connection died during COMMIT: it may or may not have happened
├── GiveUp                      trying again cannot help
│   ├── ConfigError             a setting is wrong; the message says which and what to write
│   ├── NotFound                no such thing
│   ├── Invalid                 the input is wrong; the message says what is allowed
│   └── SchemaMismatch          the database schema is behind or ahead of this version
└── Conflict                    somebody else was first: read again, then decide
    └── Deposed                 a leader wrote after a newer term had begun
"""

from orchestrix.saga.errors import DefinitionError, IllegalTransition, OrchestrixError

__all__ = [
    "ConfigError",
    "Conflict",
    "Contention",
    "DefinitionError",
    "Deposed",
    "GiveUp",
    "IllegalTransition",
    "Invalid",
    "NotFound",
    "OrchestrixError",
    "OutcomeUnknown",
    "RetryLater",
    "SchemaMismatch",
    "Unavailable",
]


class RetryLater(OrchestrixError):
    """The same call can succeed later."""


class Contention(RetryLater):
    """A deadlock, or a lock that was not free in time. Nothing was written; try the whole transaction again."""


class Unavailable(RetryLater):
    """The database or the broker is away, slow or full."""


class OutcomeUnknown(Unavailable):
    """The connection died during COMMIT: the change may or may not have happened. Read by key before trying again."""


class GiveUp(OrchestrixError):
    """Trying again cannot help."""


class ConfigError(GiveUp):
    """A setting is wrong. The message names it and says what to write."""


class NotFound(GiveUp):
    """There is no such thing."""


class Invalid(GiveUp):
    """The input is wrong. The message says what is allowed."""


class SchemaMismatch(GiveUp):
    """The database schema does not fit this version. The message names the command to run."""


class Conflict(OrchestrixError):
    """Somebody else was first: read again, then decide."""


class Deposed(Conflict):
    """A leader wrote after a newer term had begun: nothing was written, and it leads no more."""
