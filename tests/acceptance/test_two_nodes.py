"""Do several nodes and workers on RabbitMQ and PostgreSQL share the work without doing any of it twice?"""

from __future__ import annotations

import pytest

from tests.acceptance.system import EVERY_DATABASE, Client, System, create_all
from tests.support import eventually


@EVERY_DATABASE
@pytest.mark.req("S3-34", "S3-40", "S3-41", "S3-47", "S3-48", "S3-49", "S3-52", "S3-53", "DC-4", "DC-6")
async def test_300_concurrent_starts_complete_by_exactly_the_good_path(system: System) -> None:
    nodes = [system.node(), system.node()]
    workers = [system.worker(), system.worker()]
    for _, url in nodes:
        await system.ready(url)
    for worker in workers:
        await worker.wait_for_line("cmd.createGitRepo")
    names = [f"app-{n}" for n in range(300)]
    async with Client(nodes[0][1]) as first, Client(nodes[1][1]) as second:
        answered = await create_all([first, second], names, at_once=300)
    assert len(answered) == 300
    ledger = await system.all_ended(names, deadline=90)
    ledger.check_completed(names)
    assert len(list(system.repos.glob("*.git"))) == 300


@EVERY_DATABASE
async def test_workers_serve_the_queues_that_they_are_given(system: System) -> None:
    _, url = system.node()
    await system.ready(url)
    git = system.worker("-q", "cmd.createGitRepo", "--concurrency", "2")
    async with Client(url) as client:
        app = await client.created("half-served")
        await git.wait_for_line("cmd.createGitRepo")
        answer = await client.http.get(f"/apps/{app['id']}", params={"wait": "20s", "sinceVersion": "2"})
        assert answer.json()["state"] == "REGISTERING"
        system.worker("-q", "cmd.registerApp")
        await client.completed(app["id"])


@EVERY_DATABASE
async def test_nodes_stop_within_seconds_and_lose_nothing(system: System) -> None:
    (first, first_url), (_, second_url) = system.node(), system.node()
    worker = system.worker()
    await system.ready(first_url)
    await system.ready(second_url)
    names = [f"rolling-{n}" for n in range(100)]
    async with Client(first_url) as one, Client(second_url) as two:
        answered = await create_all([one, two], names)
    first.terminate()
    worker.terminate()
    assert await first.exited(deadline=20) == 0
    assert await worker.exited(deadline=45) == 0
    system.worker()
    (await system.all_ended(answered, deadline=90)).check_completed(answered)


async def test_every_node_shows_all_workers_and_which_of_them_are_gone(system: System) -> None:
    urls = [system.node(ORCHESTRIX_JOBS__BEAT="0.4", ORCHESTRIX_JOBS__SILENT="2")[1] for _ in range(2)]
    for url in urls:
        await system.ready(url)
    brief = {"ORCHESTRIX_JOBS__BEAT": "0.4", "ORCHESTRIX_JOBS__SILENT": "2"}
    stays, dies = (system.worker("-q", "cmd.createGitRepo", ORCHESTRIX_NODE_ID=name, **brief) for name in "sd")
    async with Client(urls[0]) as first, Client(urls[1]) as second:

        async def states() -> dict[str, str]:
            pages = [(await one.http.get("/workers?kind=commands")).json()["items"] for one in (first, second)]
            found = [{one["id"][0]: one["state"] for one in page} for page in pages]
            return found[0] if found[0] == found[1] else {}

        async def are(wanted: dict[str, str]) -> bool:
            return await states() == wanted

        await eventually(lambda: are({"s": "ALIVE", "d": "ALIVE"}), deadline=20)
        dies.kill9()
        await eventually(lambda: are({"s": "ALIVE", "d": "SILENT"}), deadline=20)
        stays.terminate()
        assert await stays.exited() == 0
        await eventually(lambda: are({"d": "SILENT"}), deadline=20, message="one that has left is not shown")
