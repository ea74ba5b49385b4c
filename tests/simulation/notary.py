"""What is known of every word of a job that the broker took, and is each of them settled as it should be?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.broker.topology import JOB_ASSIGNED, JOB_HANDOFF
from orchestrix.domain.handoff import NODE_CRASH, REBALANCE, SHUTDOWN
from orchestrix.domain.jobs import FINAL
from orchestrix.testing.simulation.inline_sqlite import SqliteFile
from tests.simulation.realm import Witness

_MARKED: Final = "SELECT 1 FROM jobs WHERE id = ? AND owner = ? AND handoff_reason = ?"


class Notary(Witness):
    """Knows every word that the broker has taken, and what has become of it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        """By attempt and worker: a copy of the order can come to another one."""
        self.forgotten: set[str] = set()
        """Attempts of which a broker that lost its memory had words that nobody had heard yet."""
        self.offers: list[Outgoing] = []
        """Every offer of a job, as it went over the wire."""
        self.is_ending: Callable[[str], bool] = lambda node_id: False
        """Whether the process of a node was told to end."""
        self.file: SqliteFile | None = None

    def published(self, message: Outgoing, queues: Sequence[str]) -> None:
        if message.routing_key == JOB_HANDOFF and self.file is not None:
            self.offers.append(message)
            self._judge_offer(self.file, message, json.loads(message.body))
        if queues and message.routing_key.startswith("orchestrix.job.") and b'"seq"' in message.body:
            fields = json.loads(message.body)
            self.note(f"said {fields['historyId']} {fields['seq']} {fields.get('status') or fields.get('message')}")
            words = self.said[fields["historyId"], fields["workerId"]]
            if _told(words.setdefault(fields["seq"], fields)) != _told(fields):
                self.complain(f"a worker used the number {fields['seq']} of {fields['historyId']} twice")

    def _judge_offer(self, file: SqliteFile, message: Outgoing, fields: dict[str, Any]) -> None:
        """Its reason is that of S0: a node that ends, one that is gone, or one that has too many."""
        job, node, reason = fields.get("jobId"), fields.get("fromNode"), fields.get("reason")
        self.note(f"offer of {job} from {node}: {reason}")
        of_leader = bool(file.query("SELECT 1 FROM sim_offers WHERE id = ?", (message.message_id,)))
        ending = self.is_ending(str(node))
        # One that is told to end may have an offer on the wire by which it was to have less.
        moved = reason == REBALANCE and (not ending or bool(file.query(_MARKED, (job, node, REBALANCE))))
        right = reason == NODE_CRASH if of_leader else moved or (reason == SHUTDOWN and ending)
        if not right:
            self.complain(f"S0-42, S0-56: {job} of {node} was offered for the reason {reason!r}")

    def acknowledging(self, delivery: Delivery) -> None:
        if self.file is None or self.is_over:
            return
        if delivery.queue in (JOB_ASSIGNED, JOB_HANDOFF):
            self._judge_taking(self.file, delivery.queue, json.loads(delivery.body))
        elif delivery.queue.endswith((".status", ".logs")):
            fields = json.loads(delivery.body)
            if not self._is_settled(fields, delivery.queue.endswith(".logs")):
                self.complain(f"{fields['historyId']} {fields['seq']} was acknowledged before its commit")

    def _judge_taking(self, file: SqliteFile, queue: str, fields: dict[str, Any]) -> None:
        """Whoever acknowledges an offer has found an owner, by what is committed."""
        found = file.query("SELECT owner, owner_epoch, channels FROM jobs WHERE id = ?", (fields["jobId"],))
        if not found or not found[0][2]:
            return
        owner, epoch, _ = found[0]
        offered = fields.get("fromNode"), fields.get("ownerEpoch")
        if owner is None or ((owner, epoch) == offered and fields.get("reason") != REBALANCE):
            self.complain(f"the offer of {fields['jobId']} was acknowledged before its commit: {owner} owns it")

    def _is_settled(self, fields: dict[str, Any], is_log: bool) -> bool:
        assert self.file is not None
        history, seq = fields["historyId"], fields["seq"]
        if is_log and self.file.query("SELECT 1 FROM job_logs WHERE history_id = ? AND seq = ?", (history, seq)):
            return True
        look = "SELECT state, last_log_seq, worker_id FROM job_attempts WHERE history_id = ?"
        found = self.file.query(look, (history,))
        if found and found[0][2] not in (None, fields["workerId"]):
            return True  # of a copy of the order, by another worker
        over = bool(found) and found[0][0] not in ("DISPATCHED", "RUNNING")
        if is_log:
            return not found or (over and (found[0][1] is None or seq > found[0][1]))
        heard = self.file.query("SELECT 1 FROM sim_heard WHERE history = ? AND seq >= ?", (history, seq))
        return over or bool(heard)

    def broker_forgets(self) -> None:
        """What is in its queues now is lost."""
        for (history, _), words in self.said.items():
            queues = {seq: "message" in fields for seq, fields in words.items()}
            if not all(self._is_settled({**words[seq], "seq": seq}, is_log) for seq, is_log in queues.items()):
                self.forgotten.add(history)

    def judge(self) -> None:
        """At the end: what was said, what was heard, and by whom."""
        assert self.file is not None
        self._judge_fences(self.file)
        self._judge_owners(self.file)
        self._judge_statuses(self.file)
        self._judge_lines(self.file)

    def _judge_fences(self, file: SqliteFile) -> None:
        for what, id, term, holder, present in file.query("SELECT what, id, term, holder, present FROM sim_stale"):
            self.complain(f"I6: {what} {id} by {holder} in term {term}, when {present} was the term")
        for history, seq, epoch, present in file.query("SELECT history, seq, epoch, present FROM sim_lines"):
            self.complain(f"I8: line {seq} of {history} was written under epoch {epoch} instead of {present}")

    def _judge_owners(self, file: SqliteFile) -> None:
        last: dict[str, int] = {}
        taken = "SELECT job, owner, epoch, writer, former, offered FROM sim_owned ORDER BY n"
        for job, owner, epoch, writer, former, offered in file.query(taken):
            if former is not None and offered is None:
                self.complain(f"job {job}: {owner} took it from {former}, which had not offered it")
            if epoch != last.get(job, 0) + 1:
                self.complain(f"job {job}: epoch {epoch} of {owner} came after {last.get(job, 0)}")
            if not owner.startswith(f"{writer}-"):
                self.complain(f"job {job}: {writer} made {owner} its owner")
            last[job] = epoch
        for job, history, term, holder, writer in file.query("SELECT job, history, term, holder, writer FROM sim_sent"):
            if not holder.startswith(f"{writer}-"):
                self.complain(f"I6: {writer} sent {history} of {job} in term {term} of {holder}")

    def _judge_statuses(self, file: SqliteFile) -> None:
        last: dict[str, int] = {}
        words = "SELECT job, history, seq, owner, epoch, writer, read FROM sim_heard ORDER BY n"
        for job, history, seq, owner, epoch, writer, read in file.query(words):
            if seq <= last.get(history, 0):
                self.complain(f"I8: status {seq} of {history} was applied after {last[history]}")
            if owner is None or not owner.startswith(f"{writer}-"):
                self.complain(f"I8: {writer} wrote what job {job} of {owner} has said")
            if read != epoch:
                self.complain(f"I8: status {seq} of {history} was written under epoch {read} instead of {epoch}")
            last[history] = seq

    def _judge_lines(self, file: SqliteFile) -> None:
        rows = "SELECT id, state, history_id, worker_id, seq, last_log_seq, result, channels, owner FROM jobs"
        for job, state, history, worker, seq, last_log, result, channels, owner in file.query(rows):
            self.note(f"job {job} is {state}")
            if state not in FINAL or channels or owner:
                self.complain(f"I2: job {job} is {state}, its queues {channels}, its owner {owner}")
            if state == "SUCCEEDED" and history not in self.forgotten:
                self._judge_success(file, (history, worker), seq, last_log, json.loads(result))

    def _judge_success(
        self, file: SqliteFile, whose: tuple[str, str], seq: int, last_log: int, result: dict[str, Any]
    ) -> None:
        said, history = self.said[whose], whose[0]
        lines = file.query("SELECT seq, message FROM job_logs WHERE history_id = ? ORDER BY seq", (history,))
        expected = [(n, one["message"]) for n, one in sorted(said.items()) if "message" in one and n <= last_log]
        if lines != expected:
            self.complain(f"I8: {history} logged {expected}, and {lines} are there")
        if len(lines) != result["lines"] or said[seq].get("status") != "SUCCEEDED":
            self.complain(f"I8: {history} ended by {said.get(seq)}, with {len(lines)} lines")


def _told(fields: dict[str, Any]) -> tuple[Any, ...]:
    return fields.get("status"), fields.get("message"), fields.get("progress"), fields.get("result")
