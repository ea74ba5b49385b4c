"""Commands `deadlines`, `redispatch` and `dlq`: what a person does about waits and lost messages."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import PAGE, REASON
from orchestrix.cli.nouns.sagas import VERB
from orchestrix.cli.syntax.declarations import CommandGroup, OneOf, ShellCommand, columns, option, switch
from orchestrix.cli.syntax.parsing import longer, uuid
from orchestrix.cli.syntax.values import file_object, json_object

_OF = option("--saga", "whose ID it is (app)", "SAGA", default="app")
_UNTIL = OneOf((
    option("--by", "how much longer, as 30s, 5m or 2h", "TIME", "extendBy", type=longer),
    option("--at", "RFC 3339, as 2026-01-31T12:00:00Z", "TIME", "at"),
), required=True)  # fmt: skip
DEADLINES: Final = CommandGroup("deadlines", "deadlines of sagas: list, extend, cancel", (
    ShellCommand("list", "list all next wake-ups, soonest first", "deadlines list --limit 20", PAGE, "GET /deadlines",
            columns("saga id key state step attempt wakeReason=WAITING_FOR wakeAt=UNTIL deadlineAt=RUN_DEADLINE")),
    ShellCommand("extend", "set or extend the deadline of an instance", "deadlines extend 1 --by 30m",
            (_UNTIL, _OF, *VERB), "PATCH {base}/{id}/deadline", "changed", keyed=True),
    ShellCommand("cancel", "remove the deadline of an instance", "deadlines cancel 1", (_OF, *VERB),
                 "DELETE {base}/{id}/deadline", "changed", keyed=True),
))  # fmt: skip
REDISPATCH: Final = ShellCommand(
    "redispatch", "send outstanding commands again, under their ids", "redispatch --saga app 1 2",
    (
        option("ids", "only these of --saga: ids or names", "ID", "ids", nargs="*"),
        option("--saga", "only of this saga (all)", "SAGA", "saga"),
        option("--dry-run", "only count them", to="dryRun", action="store_const", const=True),
        REASON,
    ),
    "POST /redispatch", "redispatched", "commands.api_commands:redispatch", keyed=True, question="Send them again?",
)  # fmt: skip

_FILTERS = (
    option("--queue", "only those that died in this queue", "QUEUE", "?queue"),
    option("--key", "only those with this routing key or type, as evt.orderPaid", "KEY"),
    option("--saga", "only those of this saga", "SAGA", "?saga"),
    option("--app", "only those of this instance (of --saga, if given): its id or name", "ID", "?appId"),
    option("--died-of", "only dead letters whose reason starts with REASON", "REASON", "?reason"),
)
_LETTER = option("id", "as `dlq list` shows it", "ID", type=uuid)
_BODY = OneOf((
    option("--body", "the new body: an object", "JSON", "body", json_object),
    option("--file", "the same from a file, or from standard input (-)", "PATH", "body", file_object),
), required=True)  # fmt: skip
_SOME = (
    option("id", "only this one", "ID", nargs="?", type=uuid),
    *_FILTERS,
    switch("--all", "all dead letters"),
    switch("--dry-run", "only count those that match"),
    REASON,
)
_LETTERS = columns(
    "id queue routingKey|type=KEY saga appId=APP reason deliveries+ diedAt redriven redrivenAt+=REDRIVEN_AT"
)
_A_LETTER: Final = "0b6d5a4e-1f0c-8a7b-9d3e-2c4b6a8f0e1d"
DEAD_LETTERS: Final = CommandGroup("dlq", "dead letters: messages that could not be handled", (
    ShellCommand("list", "list dead letters, newest first", "dlq list --queue cmd.registerApp",
            (*_FILTERS, switch("--redriven", "also those that were sent again", "?redriven"), *PAGE),
            "GET /dead-letters",
            _LETTERS,
            "commands.api_commands:list_dead_letters"),
    ShellCommand("show", "show one with its body", f"dlq show {_A_LETTER}", (_LETTER,), "GET /dead-letters/{id}"),
    ShellCommand("edit", "change the body of one", f"dlq edit {_A_LETTER} --file body.json", (_BODY, _LETTER, REASON),
            "PATCH /dead-letters/{id}", keyed=True),
    ShellCommand("redrive", "send one again, or all that match", "dlq redrive --queue cmd.registerApp --dry-run", _SOME,
                 view="redriven", run="commands.api_commands:redrive", keyed=True),
    ShellCommand("drop", "delete one, or all that match", "dlq drop --key evt.typo --dry-run", _SOME,
                 view="redriven", run="commands.api_commands:drop", keyed=True, question="Delete them?"),
))  # fmt: skip
