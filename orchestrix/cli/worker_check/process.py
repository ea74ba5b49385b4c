"""Worker process: the worker under check, where the check itself starts and stops it, and what shows its effects."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from contextlib import suppress
from typing import Final

from orchestrix.errors import ConfigError

KILL_AFTER_S: Final = 3.0
EFFECT_TIMEOUT_S: Final = 20.0
KEY: Final = "{effectKey}"


class CheckedProcess:
    """`line` is run with `url` in place of `mark`. It is started again when it has ended by itself, as a supervisor
    would. What it prints goes to standard error.
    """

    def __init__(self, line: str, mark: str, url: str) -> None:
        self._words = _words(line, "--start")
        if not any(mark in word for word in self._words):
            raise ConfigError(f"--start: write {mark} where the address of this check is to be")
        self._words = [word.replace(mark, url) for word in self._words]
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self.ends = 0
        """How often it has ended by itself."""
        self._exit_code = 0
        self._failure: ConfigError | None = None

    def explain_end(self) -> str:
        """That it has ended by itself, to be put behind an error; nothing where it has not."""
        if not self.ends:
            return ""
        times = f" {self.ends} times, the last time" if self.ends > 1 else ""
        how = f"exit code {self._exit_code}" if self._exit_code >= 0 else f"signal {-self._exit_code}"
        return f": what --start began has ended by itself{times} with {how}; see what it printed above"

    async def start(self) -> None:
        """Starts it. Raises `ConfigError` where there is no such program."""
        await self._spawn()
        self._watching = asyncio.create_task(self._watch(), name="worker under check")

    def raise_failure(self) -> None:
        """Raises `ConfigError` where it has ended by itself and could not be started again: verdicts of what came after
        that would be wrong.
        """
        if self._failure is not None:
            raise self._failure

    async def stop(self, timeout_s: float) -> int | None:
        """Sends SIGTERM; its exit code, or None if it has not ended within the time."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
            self._watching = None
        process = self._process
        assert process is not None, "it was started"
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait()
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Ends it at once, with all that it has started."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_AFTER_S):
                await process.wait()

    async def _spawn(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._words, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
            )
        except OSError as error:
            raise ConfigError(f"--start: {self._words[0]} cannot be started: {error.strerror or error}") from error

    async def _watch(self) -> None:
        while True:
            assert self._process is not None, "it was started"
            self._exit_code = await self._process.wait()
            self.ends += 1
            await asyncio.sleep(min(2.0, 0.2 * self.ends))
            try:
                await self._spawn()
            except ConfigError as error:
                self._failure = ConfigError(f"{error}{self.explain_end()}")
                return


class EffectProbe:
    """`line` is run with the effect key in place of `{effectKey}`: exit code 0 says that there is such an effect."""

    def __init__(self, line: str) -> None:
        self._words = _words(line, "--effect")
        if not any(KEY in word for word in self._words):
            raise ConfigError("--effect: write {effectKey} where the key is to be, as in 'test -e made/{effectKey}'")

    async def sees(self, key: str) -> bool:
        """Whether there is an effect of that key. Raises `ConfigError` where the program cannot show it."""
        words = [word.replace(KEY, key) for word in self._words]
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
            )
            async with asyncio.timeout(EFFECT_TIMEOUT_S):
                return await process.wait() == 0
        except OSError as error:
            raise ConfigError(f"--effect: {words[0]} cannot be started: {error.strerror or error}") from error
        except TimeoutError:
            process.kill()
            await process.wait()
            raise ConfigError(f"--effect: {words[0]} has not ended within {EFFECT_TIMEOUT_S:g} s") from None


def _words(line: str, flag: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error
    if not words:
        raise ConfigError(f"{flag}: write a command")
    return words
