"""Does a process that a function of ours forks let go of what is its parent's?"""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

HEAD = """
import asyncio, fcntl, multiprocessing, os, signal, socket, sys, threading, time
from pathlib import Path
from orchestrix import fork_safety
from orchestrix.bootstrap.stop_signals import StopSignals
from orchestrix.cli import devfile
from orchestrix.lifecycle import run_to_the_end

async def beside(work):
    return await asyncio.to_thread(work)

def sleep(begun=None):
    if begun is not None:
        begun.set()
    time.sleep(60)

def square(n):
    return n * n
"""


def run(main: str, *arguments: str, within: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Runs `main` as one of our processes runs."""
    script = dedent(HEAD) + dedent(main) + "\nrun_to_the_end(main())\n"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=within, check=False
    )


def answer(main: str, *arguments: str) -> str:
    done = run(main, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_pool_works_and_its_processes_can_be_ended() -> None:
    assert (
        answer(
            """
            def work():
                with multiprocessing.Pool(2) as pool:  # its end terminates them
                    return pool.map(square, range(4))

            async def main():
                with StopSignals():
                    print(await beside(work))
            """
        )
        == "[0, 1, 4, 9]"
    )


@pytest.mark.parametrize("where", ["await beside(work)", "work()"])
def test_a_child_ends_by_sigterm(where: str) -> None:
    assert (
        answer(
            f"""
            def work():
                begun = multiprocessing.Event()
                child = multiprocessing.Process(target=sleep, args=(begun,))
                child.start()
                begun.wait(10)
                child.terminate()
                child.join(10)
                print(child.exitcode)

            async def main():
                with StopSignals() as signals:
                    {where}
                    await asyncio.sleep(0.1)  # a signal that reached this process would be handled by now
                    print(signals.stop.is_set())
            """
        )
        == "-15\nFalse"
    )


@pytest.mark.parametrize("where", ["await beside(work)", "work()"])
def test_a_child_ends_by_a_sigterm_that_comes_at_once(where: str) -> None:
    """Before it has the handlers of a new process."""
    assert (
        answer(
            f"""
            def work():
                codes = set()
                for _ in range(30):
                    child = multiprocessing.Process(target=sleep)
                    child.start()
                    child.terminate()
                    child.join(10)
                    codes.add(child.exitcode)
                print(codes)

            async def main():
                with StopSignals() as signals:
                    {where}
                    await asyncio.sleep(0.1)
                    print(signals.stop.is_set(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
            """
        )
        == "{-15}\nFalse set()"
    )


def test_a_child_says_nothing_in_its_parents_name_and_takes_nothing_from_it() -> None:
    assert answer(
        """
            async def main():
                ours, theirs = socket.socketpair()
                reader, writer = await asyncio.open_connection(sock=ours)
                listening = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
                port = listening.sockets[0].getsockname()[1]

                def child():
                    try:
                        writer.transport._sock.send(b"from the child")
                    except OSError:
                        pass
                    writer.transport.abort()
                    print("loop", asyncio.run(asyncio.sleep(0, "free")), flush=True)

                one = multiprocessing.Process(target=child)
                one.start()
                one.join(10)
                lives = multiprocessing.Event()

                def keep():
                    lives.set()
                    sleep()

                keeps = multiprocessing.Process(target=keep, daemon=True)
                keeps.start()
                assert lives.wait(20), "a child that has just been forked still has what is its parent's"
                writer.write(b"from the parent")
                await writer.drain()
                theirs.sendall(b"to the parent")
                print(theirs.recv(100).decode(), (await reader.read(100)).decode(), one.exitcode)
                listening.close()
                again = socket.create_server(("127.0.0.1", port))
                print("the port is free while a child lives")
                keeps.kill()
                keeps.join(10)
            """
    ).splitlines() == ["loop free", "from the parent to the parent 0", "the port is free while a child lives"]


@pytest.mark.parametrize("where", ["work()", "await beside(work)"])
def test_a_child_that_comes_back_from_its_handler_ends(where: str) -> None:
    done = run(
        f"""
        def work():
            return os.fork()

        async def main():
            pid = {where}
            os.write(1, f"here {{pid > 0}}\\n".encode())  # at once, for the child writes there too
            _, status = os.waitpid(pid, 0)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("here True") == 1


def test_the_folder_of_dev_is_free_when_its_process_is_gone_and_a_child_lives(tmp_path: object) -> None:
    killed = run(
        """
        async def main():
            folder = Path(sys.argv[1])
            with devfile.claimed(folder):
                devfile.write(folder, database_url="sqlite+aiosqlite:///x", broker_url="amqp://b", api_url="http://a")

                def child():
                    devfile.keep_ports(folder, api=1, broker=2)
                    os.close(1)
                    os.close(2)
                    time.sleep(5)

                multiprocessing.Process(target=child).start()
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(tmp_path),
    )
    assert killed.returncode == -9
    assert (
        answer(
            """
            async def main():
                with devfile.claimed(Path(sys.argv[1])):
                    print("claimed", devfile.last_ports(Path(sys.argv[1])).api)
            """,
            str(tmp_path),
        )
        == "claimed None"
    )
