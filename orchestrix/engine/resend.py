"""Resend: writes the rows of commands again that may have been worked on before."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrix.outbox.rows import unpublished_rows
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import doubted
from orchestrix.saga.state import Instance


async def send_again(tx: Transaction, catalog: Catalog, live: Sequence[Instance]) -> int:
    """Writes the rows of the commands that these instances of one table wait for; how many there are.

    If a worker refuses the second copy, that of the first may have done its work and its answer been lost: so each
    instance remembers the resend, and a step that fails after it is undone too.
    """
    rows = unpublished_rows(catalog, live, tx.now())
    if rows:
        sent = {row.instance_id for row in rows}
        doubts = [doubted(one) for one in live if one.id in sent]
        await instances.write_progress(tx, saga_tables_of(live[0].saga), doubts)
    await outbox.insert(tx, rows, claimed_by=None, lease_s=0.0)
    return len(rows)
