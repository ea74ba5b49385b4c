"""Is a topology that was written down the same when it is read?"""

from __future__ import annotations

import json

from orchestrix.broker.port import Binding, Exchange, Queue, Topology
from orchestrix.broker.topology import SINGLE, from_json, to_json

WHOLE = Topology(
    exchanges=(Exchange("told", "topic", {"alternate-exchange": "lost"}),),
    queues=(Queue("ear", SINGLE, unique=True),),
    bindings=(Binding("ear", "told", "#"),),
)


def test_what_was_written_is_read() -> None:
    assert from_json(json.loads(json.dumps(to_json(WHOLE)))) == WHOLE


def test_what_another_version_writes_beside_is_passed_over() -> None:
    stored = json.loads(json.dumps(to_json(WHOLE)))
    stored["of_another_version"] = []
    for kind in ("exchanges", "queues", "bindings"):
        stored[kind][0]["of_another_version"] = True
    assert from_json(stored) == WHOLE
