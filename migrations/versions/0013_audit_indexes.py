"""Indexes for the filters of the audit: a person, an action, a saga, one instance, all in the order of time.

Nodes of the former release run beside it, and need to know nothing of them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_audit_at_id": ["at", "id"],
    "ix_audit_actor_at_id": ["actor", "at", "id"],
    "ix_audit_verb_at_id": ["verb", "at", "id"],
    "ix_audit_saga_at_id": ["saga", "at", "id"],
    "ix_audit_saga_instance_id_at_id": ["saga", "instance_id", "at", "id"],
}


def upgrade() -> None:
    # What is there already stays: MySQL cannot undo a migration that was cut off half-way.
    present = _present()
    for name, columns in INDEXES.items():
        if name not in present:
            op.create_index(name, "audit", columns)


def downgrade() -> None:
    present = _present()
    for name in INDEXES:
        if name in present:
            op.drop_index(name, "audit")


def _present() -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("audit")}
