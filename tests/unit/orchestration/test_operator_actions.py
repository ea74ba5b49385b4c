"""Is who did something named once?"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from orchestrix.engine.explain.operator_actions import done_by
from orchestrix.persistence.audit import AuditRow


@pytest.mark.parametrize(
    ("actor", "reason", "sentence"),
    [
        ("ada", "address is wrong", "Paused by ada at noon (address is wrong)"),
        ("ada", "by hand (root)", "Paused by ada at noon (by hand (root))"),
        ("anonymous", "by hand (root)", "Paused by hand (root) at noon"),
        ("anonymous", "by hand", "Paused by hand at noon"),
        ("anonymous", "address is wrong", "Paused by anonymous at noon (address is wrong)"),
    ],
)
def test_without_tokens_the_user_of_the_shell_is_who_did_it(actor: str, reason: str, sentence: str) -> None:
    row = AuditRow(at=datetime(2026, 1, 31, tzinfo=UTC), actor=actor, verb="pause", reason=reason)
    assert done_by(row, "Paused", "noon") == sentence
