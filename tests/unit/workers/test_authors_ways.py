"""Does the worker cope with what authors write: decorators, errors that cannot be printed, loggers of their own?"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from orchestrix import Command, Context, event_loop_watchdog
from orchestrix.event_loop_watchdog import EventLoopWatchdog
from orchestrix.telemetry.logs import JsonFormatter, PrettyFormatter
from orchestrix.worker.context import LOGGER
from orchestrix.worker.module_loader import load_modules
from tests.support import eventually
from tests.unit.cli.shell import logging_kept

from .rig import Rig, command


async def plain(context: Context, command: Command) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"thread": threading.current_thread() is threading.main_thread()}


def decorated(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def wrapper(*arguments: Any) -> Any:
        return handler(*arguments)

    return wrapper


class Shop:
    @classmethod
    async def sell(cls, context: Context, command: Command) -> dict[str, Any]:
        return await plain(context, command)

    async def __call__(self, context: Context, command: Command) -> dict[str, Any]:
        return await plain(context, command)


WAYS = [decorated(plain), decorated(decorated(plain)), functools.partial(plain), Shop.sell, Shop(), decorated(Shop())]
WAYS += [functools.partial(decorated(plain)), decorated(functools.partial(Shop()))]


@pytest.mark.parametrize("handler", WAYS)
async def test_an_async_function_is_awaited_however_it_is_wrapped(rig: Rig, handler: Any) -> None:
    if isinstance(handler, functools.partial):
        handler.__qualname__ = "a partial"  # type: ignore[attr-defined]
    await rig.start(handler)
    rig.send(1, 2)
    await rig.settled()
    assert [body["data"] for body in rig.bodies()] == [{"thread": True}] * 2


async def test_what_is_hidden_by_a_decorator_has_its_time_limit_too(rig: Rig) -> None:
    async def hangs(context: Context, command: Command) -> None:
        await asyncio.Event().wait()

    await rig.start(decorated(hangs))
    rig.rows.put(1)
    rig.put(command(1, timeout_ms=100))
    await rig.settled()
    assert rig.error()["type"] == "Timeout"


class Mute(Exception):
    """One whose text ends the process that asks for it."""

    def __init__(self, raises: type[BaseException]) -> None:
        self.raises = raises

    def __str__(self) -> str:
        raise self.raises()

    __repr__ = __str__


@pytest.mark.parametrize("raises", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, ValueError])
@pytest.mark.parametrize("threaded", [False, True])
async def test_an_error_whose_text_raises_anything_is_a_failure_of_its_step(
    rig: Rig, raises: type[BaseException], threaded: bool
) -> None:
    def beside(context: Context, command: Command) -> None:
        raise Mute(raises) from Mute(raises)

    async def fails(context: Context, command: Command) -> None:
        raise Mute(raises)

    await rig.start(beside if threaded else fails)
    logging.getLogger().addHandler(strict := logging.StreamHandler(open("/dev/null", "w")))  # noqa: SIM115
    try:
        rig.send(1)
        await rig.settled()
    finally:
        logging.getLogger().removeHandler(strict)
        strict.stream.close()
    assert (rig.error()["type"], rig.error()["retryable"]) == ("Mute", True)


async def test_what_a_line_is_given_as_extra_is_kept(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def says(context: Context, command: Command) -> None:
        context.log.warning("sold", extra={"seat": 7, "app_id": "another"})

    await rig.start(says)
    rig.send(3)
    await rig.settled()
    (record,) = [one for one in caplog.records if one.message == "sold"]
    assert (vars(record)["seat"], vars(record)["app_id"], vars(record)["step"]) == (7, 3, "createGitRepo")


SILENCERS = {
    "config": "import logging.config\nlogging.config.dictConfig({'version': 1, 'root': {'level': 'CRITICAL'}})",
    "disable": "import logging\nlogging.disable(logging.CRITICAL)",
    "root": "import logging\nlogging.getLogger().handlers.clear()\nlogging.getLogger('orchestrix.worker').setLevel(99)",
    "level": "import logging\nfor one in logging.getLogger().handlers: one.setLevel(99)",
}


@pytest.mark.parametrize("silencer", SILENCERS)
def test_a_module_that_sets_up_logging_does_not_silence_ours(
    silencer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    class Ours(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    (tmp_path / f"silent_{silencer}.py").write_text(SILENCERS[silencer] + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    root, handler = logging.getLogger(), Ours()
    try:
        with logging_kept():  # the module switches off those of others too
            root.addHandler(handler)
            root.setLevel(logging.INFO)
            load_modules([f"silent_{silencer}"], "ORCHESTRIX_WORKERS")
            LOGGER.info("still here")
            logging.getLogger("orchestrix.new").warning("so is this")
    finally:
        logging.disable(logging.NOTSET)
        sys.modules.pop(f"silent_{silencer}")
    assert lines == ["still here", "so is this"]


async def test_who_blocks_the_loop_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fifth of the time. It blocks until it has been found twice, each time."""
    assert (event_loop_watchdog.BLOCKED_AFTER_S, event_loop_watchdog.CHECK_INTERVAL_S) == (1.0, 0.25)
    monkeypatch.setattr(event_loop_watchdog, "BLOCKED_AFTER_S", 1.0 / 5)
    monkeypatch.setattr(event_loop_watchdog, "CHECK_INTERVAL_S", 0.25 / 5)
    found = threading.Semaphore(0)
    log_stall = EventLoopWatchdog._log_stall

    def finds(self: EventLoopWatchdog, stall_s: float, frame: FrameType) -> None:
        log_stall(self, stall_s, frame)
        found.release()

    monkeypatch.setattr(EventLoopWatchdog, "_log_stall", finds)

    def blocks() -> None:
        for _ in range(2):
            assert found.acquire(timeout=5)

    watch = EventLoopWatchdog(asyncio.get_running_loop())
    watch.start()
    try:
        await eventually(lambda: "orchestrix-stalls" in [one.name for one in threading.enumerate()], deadline=5)
        for _ in range(2):
            blocks()
            await asyncio.sleep(0)
        await eventually(lambda: any("blocks" in one.message for one in caplog.records), deadline=5)
    finally:
        watch.stop()
    (line,) = [one for one in caplog.records if "blocked the event loop" in one.message]
    code = blocks.__code__
    assert re.match(rf"{re.escape(__file__)}:(\d+) \({re.escape(code.co_qualname)}\) blocked ", line.message)
    assert line.message.endswith(": await what takes long, or write a def, which runs in a thread")
    assert "in acquire\n" in vars(line)["stack"]  # of the standard library
    pretty = PrettyFormatter(False, True).format(line)
    assert (len(pretty.splitlines()), "stack" in pretty, pretty.endswith(line.message)) == (1, False, True)
    assert json.loads(JsonFormatter("n1", "dev").format(line))["stack"] == vars(line)["stack"]


def frames_of(*files: tuple[str, str]) -> list[FrameType]:
    """Frames of functions in those (module, file), each called by the one before."""
    found: list[FrameType] = []

    def last() -> None:
        frame = sys._getframe(1)
        for _ in files:
            found.insert(0, frame)
            assert frame.f_back is not None
            frame = frame.f_back

    call: Callable[[], None] = last
    for module, file in reversed(files):
        space: dict[str, Any] = {"__name__": module, "call": call}
        exec(compile(f"def of_{module.replace('.', '_')}():\n    call()\n", file, "exec"), space)
        call = space[f"of_{module.replace('.', '_')}"]
    call()
    return found


BASE, PACKAGE = ("asyncio.events", "/lib/asyncio/events.py"), ("pydantic.main", "/v/site-packages/pydantic/main.py")
LIBRARY, AUTHOR = ("orchestrix.api.app", "/v/site-packages/orchestrix/api/app.py"), ("shop.steps", "/app/shop/steps.py")


@pytest.mark.parametrize(
    ("called", "first", "named", "is_the_authors"),
    [
        ([BASE, LIBRARY, AUTHOR, ("shop.parse", "/app/parse.py"), PACKAGE, ("json", "/lib/json.py")], 2, 3, True),
        ([LIBRARY, AUTHOR, LIBRARY, PACKAGE], 1, 1, True),  # the author calls the library
        ([BASE, LIBRARY, PACKAGE, ("json", "/lib/json.py")], 2, 2, False),
        ([BASE, LIBRARY, ("pathlib", "/lib/pathlib.py")], 0, 2, False),
    ],
)
def test_the_innermost_line_of_the_author_is_named(
    called: list[tuple[str, str]], first: int, named: int, is_the_authors: bool
) -> None:
    frames = frames_of(*called)
    found, advice = event_loop_watchdog._authors_frames(frames)
    assert (frames.index(found[0]), frames.index(found[-1])) == (first, named)
    assert advice.startswith("if a function of yours") is not is_the_authors
