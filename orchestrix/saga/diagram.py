"""Diagram: draws a saga as a Mermaid state diagram."""

from __future__ import annotations

from .definition import COMPLETED, CREATED, FAILED, STEP_FAILED, Saga

_LABELS = {CREATED: "start", STEP_FAILED: "a step failed, or cancel"}


def to_mermaid(saga: Saga) -> str:
    """A `stateDiagram-v2` of every legal transition, in the order of a successful run."""
    lines = ["stateDiagram-v2"]
    for edge in saga.edges:
        label = _LABELS.get(edge.cause, edge.cause)
        lines.append(f"    {edge.source or '[*]'} --> {edge.target}: {label}")
    lines += [f"    {end} --> [*]" for end in (COMPLETED, FAILED)]
    return "\n".join(lines) + "\n"
