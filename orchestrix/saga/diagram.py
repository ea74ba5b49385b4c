"""Diagram: draws a saga as a Mermaid state diagram."""

from __future__ import annotations

import re

from .definition import COMPLETED, CREATED, FAILED, STEP_FAILED, Saga

_LABELS = {CREATED: "start", STEP_FAILED: "a step failed, or cancel"}


def to_mermaid(saga: Saga) -> str:
    """A `stateDiagram-v2` of every legal transition, in the order of a successful run."""
    lines = ["stateDiagram-v2"]
    groups = _group_jobs(saga)
    for edge in saga.edges:
        label = _LABELS.get(edge.cause, edge.cause) + groups.get(edge.cause, "")
        lines.append(f"    {edge.source or '[*]'} --> {edge.target}: {label}")
    lines += [f"    {end} --> [*]" for end in (COMPLETED, FAILED)]
    return "\n".join(lines) + "\n"


def _group_jobs(saga: Saga) -> dict[str, str]:
    """What each event says beside its name that ends a step which executors do."""
    jobs = {step.event: step.job for step in saga.steps if step.job is not None and step.job.group is not None}
    return {event: f" (job {_label(job.name)} of group {_label(str(job.group))})" for event, job in jobs.items()}


def _label(text: str) -> str:
    """Without the two characters that end a label."""
    return re.sub("[:;]", " ", text)
