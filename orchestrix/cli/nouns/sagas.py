"""Commands `apps` and `sagas`: the second has the same for sagas of any name, and more for versions."""

from __future__ import annotations

from typing import Any, Final

from orchestrix.cli.nouns.options import (
    CREATED_BY,
    DATABASE_URL,
    DRY_RUN,
    PAGE,
    REASON,
    SAGA,
    STATE,
    VERSIONS,
)
from orchestrix.cli.syntax.declarations import CommandGroup, Option, ShellCommand, columns, option, switch
from orchestrix.cli.syntax.parsing import OUTPUT, renamed, seconds, whole
from orchestrix.cli.syntax.values import json_object, moment

ID: Final = option("id", "its id or its name (id:1 or name:1 where 1 is both)", "ID")
IF_VERSION: Final = option("--if-version", "only if it is still at this version", "N", type=whole(*VERSIONS))
VERB: Final = (ID, REASON, DRY_RUN, IF_VERSION)
_WAIT: Final = option(
    "--wait", "wait until it ends (60 s at most if no number is given)", "SECONDS", nargs="?", type=seconds, const=60.0
)
_CREATION: Final = (
    option("--by", "who asks for it (createdBy)", "WHO", "createdBy", required=True),
    option("--data", "a JSON object to start with", "JSON", "data", json_object),
    _WAIT,
    option("--idempotency-key", "asking again with the same key starts nothing, but gives the same answer", "KEY"),
)
_FILTERS: Final = (
    STATE,
    CREATED_BY,
    option("--created-after", "as 2h (ago), yesterday or 2026-01-31T12:00:00Z", "TIME", "?createdAfter", moment),
    option("--created-before", "the same", "TIME", "?createdBefore", moment),
    option("--q", "only where the name begins like this (case matters)", "PREFIX", "?q"),
    switch("--stuck", "only those that wait for a person, the broker or workers, or are overdue", "?stuck"),
    option("--sort", "createdAt, updatedAt, appName or key; - in front descends (-createdAt)", "FIELD", "?sort"),
    *PAGE,
)
_TERMINATE: Final = "Terminate {saga} {id}? Nothing that it has done is undone."
_PATCH: Final = "an object: a merge patch of the data, what is null is taken away (RFC 7396)"
_DATA: Final = option("--data", _PATCH, "JSON", "data", json_object)
_OUTPUT: Final = "what the step would have answered: an object"
_HISTORY: Final = columns("version fromState=FROM toState=TO reason actor at=WHEN traceId+=TRACE")
_STUCK: Final = columns(
    "saga id key=NAME state step? attempt? sentence|why|reason|blocker=WHY since|stuckSince|updatedAt=SINCE wakeAt=NEXT"
    " createdAt+=AGE"
)


def _of_one(noun: str, *saga: Option, **fixed: str) -> tuple[ShellCommand, ...]:
    """The commands that apps and other sagas have alike. `saga` is the argument that names the saga, if one does."""

    def one(word: str, about: str, *own: Option, more: str = "", **text: Any) -> ShellCommand:
        text.setdefault("request", f"POST {{base}}/{{id}}/{word}")
        example = f"{noun} {word} {'order ' if saga else ''}{more or '1'}"
        return ShellCommand(word, about, example, (*saga, *own), fixed=fixed, **text)

    def reader(word: str, about: str, **text: Any) -> ShellCommand:
        end = "" if word in ("show", "watch") else f"/{word}"
        return one(word, about, ID, request=f"GET {{base}}/{{id}}{end}", **text)

    def verb(word: str, about: str, *own: Option, **text: Any) -> ShellCommand:
        return one(word, about, *own, *VERB, view="changed", keyed=True, **text)

    name = option("key", "its name, unique within its saga", "KEY" if saga else "NAME", "key" if saga else "appName")
    heads = columns(
        f"id {'key' if saga else 'appName|key=NAME'} state version createdBy=BY createdAt=CREATED blocker?"
        " attempt+ wakeReason+=WAITING_FOR wakeAt+=NEXT updatedAt+ correlationId+ traceId+"
    )
    create = {"request": "POST {base}", "run": "commands.sagas:create", "more": "billing --by ada --wait"}
    filters: dict[str, Any] = {"request": "GET {base}", "view": heads, "more": "--state FAILED"}
    filters |= {"run": "commands.sagas:list_all"}
    patch = _DATA._replace(more={**_DATA.more, "required": True})
    return (
        one("create", "start one", name, *_CREATION, **create),
        one("list", "list them, newest first", *_FILTERS, **filters),
        reader("show", "show one"),
        reader("history", "every change of its state", view=_HISTORY),
        reader("messages", "its messages: sent, waiting, ignored, dead", view=columns("*")),
        reader("watch", "follow its changes until it ends", run="commands.sagas:watch"),
        reader("why", "what it waits for, and what helps", view="why"),
        verb("retry", "retry now, also what is held; start a failed one again", _DATA),
        verb(
            "skip",
            "continue as if the current step had succeeded",
            option("--output", _OUTPUT, "JSON", "output", json_object, dest="step_output"),
        ),
        verb(
            "edit",
            "change the data of a blocked or failed one",
            patch,
            request="PATCH {base}/{id}",
            more="""1 --data '{"team": "blue"}'""",
        ),
        verb("pause", "send nothing more for it"),
        verb("resume", "end the pause"),
        verb("cancel", "give up and undo what was done"),
        verb("terminate", "give up and undo nothing", question=_TERMINATE),
    )


_CHECK = ShellCommand(
    "check", "compare this code with the live instances", "sagas check --against https://orchestrix.example",
    (option("--against", "of a database, or of an API (the settings' database)", "URL"),),
    run="commands.version_check:check",
)  # fmt: skip
_RENAMED: Final[dict[str, Any]] = {"type": renamed, "action": "append", "default": []}
_MIGRATE = ShellCommand(
    "migrate", "move live instances of older versions to a later one", "sagas migrate order --to 2 --dry-run",
    (
        SAGA,
        option("--to", "the version to move them to", "N", type=whole(*VERSIONS), required=True),
        option("--map", "a renamed state; again for more", "OLD=NEW", **_RENAMED),
        option("--map-step", "a renamed step; again for more", "OLD=NEW", **_RENAMED),
        switch("--wait", "wait for outstanding steps, and send nothing new meanwhile"),
        option("--for", "how long --wait waits (60)", "SECONDS", dest="wait_s", type=seconds),
        switch("--dry-run", "only count what would be moved"),
        REASON, DATABASE_URL, OUTPUT,
    ),
    run="commands.saga_versions:migrate", client=False,
)  # fmt: skip
APPS: Final = CommandGroup("apps", "apps: start, show and control them", _of_one("apps", saga="app"))
_DEFINITIONS = ShellCommand(
    "definitions", "the sagas that there are, their versions, and what is live", "sagas definitions",
    request="GET /sagas", view="definitions",
)  # fmt: skip
SAGAS: Final = CommandGroup(
    "sagas",
    "sagas of any name: start, show, control, migrate",
    (*_of_one("sagas", SAGA), _DEFINITIONS, _CHECK, _MIGRATE),
)
STUCK: Final = ShellCommand(
    "stuck",
    "what waits for a person, the broker or workers, over all sagas",
    "stuck -o wide",
    PAGE,
    "GET /stuck",
    _STUCK,
)
TRACE: Final = ShellCommand(
    "trace",
    "what happened to an instance and when, over all processes",
    "trace 1 --saga order",
    (ID, option("--saga", "whose ID it is (app)", "SAGA", default="app"), switch("--all", "all spans, however many")),
    run="commands.trace:trace",
)
