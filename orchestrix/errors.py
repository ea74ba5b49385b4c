"""Errors: every error that Orchestrix raises, in families by what the caller should do.

OrchestrixError                 (orchestrix.saga.errors) root of all
├── DefinitionError             (orchestrix.saga.errors) a saga is wrong; found at import
├── IllegalTransition           (orchestrix.saga.errors) the state machine has no such transition
├── RetryableError              try again, the same call can succeed
│   ├── Contention              a deadlock, or a lock that was not free in time
│   └── Unavailable             database or broker is unavailable, slow or full
│       ├── BrokerUnavailable   it is the broker
│       └── OutcomeUnknown      the connection was lost during COMMIT: it may or may not have happened
├── PermanentError              trying again cannot help
│   ├── ConfigError             a setting is wrong; the message says which and what to write
│   ├── NotFound                no such thing
│   ├── Invalid                 the input is wrong; the message says what is allowed
│   └── SchemaMismatch          the database schema is behind or ahead of this version
└── ConflictError               a concurrent update was committed first: read again, then decide
    ├── ShardLost               a member wrote for a shard that another process has since
    └── StaleTermError          a leader wrote after a newer term had begun
"""

from orchestrix.saga.errors import DefinitionError, IllegalTransition, OrchestrixError

__all__ = [
    "BrokerUnavailable",
    "ConfigError",
    "ConflictError",
    "Contention",
    "DefinitionError",
    "IllegalTransition",
    "Invalid",
    "NotFound",
    "OrchestrixError",
    "OutcomeUnknown",
    "PermanentError",
    "RetryableError",
    "SchemaMismatch",
    "ShardLost",
    "StaleTermError",
    "Unavailable",
]


class RetryableError(OrchestrixError):
    """The same call can succeed later."""


class Contention(RetryableError):
    """A deadlock, or a lock that was not free in time. Nothing was written; try the whole transaction again."""


class Unavailable(RetryableError):
    """The database or the broker is unavailable, slow or full."""


class BrokerUnavailable(Unavailable):
    """The broker is unavailable, slow or full; the database may be well."""


class OutcomeUnknown(Unavailable):
    """The connection was lost during COMMIT: the change may or may not have happened. Read by key before trying
    again."""


class PermanentError(OrchestrixError):
    """Trying again cannot help."""


class ConfigError(PermanentError):
    """A setting is wrong. The message names it and says what to write."""


class NotFound(PermanentError):
    """There is no such thing."""


class Invalid(PermanentError):
    """The input is wrong. The message says what is allowed."""


class SchemaMismatch(PermanentError):
    """The database schema does not fit this version. The message names the command to run."""


class ConflictError(OrchestrixError):
    """A concurrent update was committed first: read again, then decide."""


class RefusedAction(ConflictError):
    """What is asked for does not fit the state; `allowed` are the actions that do."""

    def __init__(self, message: str, *allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class ShardLost(ConflictError):
    """The shard is not this process's any more: nothing may be written for it. Roll back, and let the work end."""


class StaleTermError(ConflictError):
    """A leader wrote after a newer term had begun: nothing was written, and this node is no longer the leader."""
