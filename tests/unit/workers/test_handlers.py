"""Are handlers registered, and wrong ones refused with a sentence?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from orchestrix import Command, Context, handles
from orchestrix.errors import ConfigError
from orchestrix.worker import handlers
from orchestrix.worker.handlers import HandlerTable


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "registered", [])


async def make(context: Context, command: Command) -> dict[str, Any]:
    return {}


async def other(context: Context, command: Command) -> None: ...


def test_a_function_is_registered_and_stays_what_it_was() -> None:
    assert handles("cmd.a")(handles("cmd.b")(make)) is make
    assert [(one.command, one.handler) for one in handlers.registered] == [("cmd.b", make), ("cmd.a", make)]


def test_two_handlers_for_one_command_are_refused() -> None:
    table = HandlerTable([("cmd.a", make), ("cmd.a", make)])
    with pytest.raises(ConfigError, match=r"cmd\.a has two handlers, .*make and .*other: remove one"):
        table.add("cmd.a", other)
    assert dict(table) == {"cmd.a": make}


def test_a_decorator_without_command_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"make\): write the command's name"):
        handles(make)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"@handles\('evt\.a'\): write the command's name"):
        handles("evt.a")
    with pytest.raises(ConfigError, match=r"@handles\(5\): write the command's name"):
        handles(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r'@handles\(\): command is missing: write @handles\("cmd.createGitRepo"\)'):
        handles()  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"@handles\('cmd.a', queue='b'\): unknown argument queue=: write @handles"):
        handles("cmd.a", queue="b")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="it takes one argument without a name, not 2"):
        handles("cmd.a", "cmd.b")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["cmd.", "cmd.x y", "cmd.1", "cmd.*", "cmd.é", "cmd.a\n", "cmd." + "a" * 101])
def test_a_command_that_no_saga_could_have_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ConfigError, match=r"must be cmd\. and a name: a letter, then letters, digits, .*at most 100"):
        handles(name)


def test_a_command_whose_queue_is_that_of_dead_letters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"@handles\('cmd.a.dead'\): .* is named like a dead-letter queue"):
        handles("cmd.a.dead")


def test_a_table_takes_what_can_handle_commands() -> None:
    with pytest.raises(ConfigError, match=r"5 is not a function"):
        HandlerTable([("cmd.a", 5)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"must take two arguments, the context and the command"):
        HandlerTable([("cmd.a", lambda context: None)])  # type: ignore[list-item, misc]


def test_a_function_that_cannot_be_called_with_context_and_command_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must take two arguments"):
        handles("cmd.a")(lambda context: None)
    assert handles("cmd.a")(partial(lambda a, b, c: None, 1))


def test_a_function_that_yields_is_refused() -> None:
    async def rows(context: Context, command: Command) -> AsyncIterator[int]:
        yield 1

    class Rows:
        def __call__(self, context: Context, command: Command) -> Iterator[int]:
            yield 1

    with pytest.raises(ConfigError, match=r"is a generator function \(it has a yield\)"):
        handles("cmd.a")(Rows())
    with pytest.raises(ConfigError, match=r"Rows is a class: write def or async def below the decorator"):
        handles("cmd.a")(Rows)
    with pytest.raises(ConfigError, match=r"rows is an async generator function \(it has a yield\): return a map"):
        handles("cmd.a")(rows)
