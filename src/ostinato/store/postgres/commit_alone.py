"""An owner's transaction of one kind of move as one statement: the uneventful assignments or successes.

Four messages, each waited for, become one, which is what a batch of a few rows costs most of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from ostinato.store.batches import CommitBatch, CommitReport, Proof
from ostinato.store.postgres.commit import columns
from ostinato.store.postgres.faults import data_problem
from ostinato.store.postgres.statements import statement
from ostinato.store.server.commit import RefusedDataError, illegal, kinds_of
from ostinato.store.server.database import DriverConnection
from ostinato.store.server.move_rows import MoveRows, move_rows

#: Lists of a batch that are written so.
_KINDS = ({"assigns"}, {"successes"})
#: Parameters of the statement before those of its move.
_PROOF_COUNT = 6
_PARAMETER = re.compile(r"\$(\d+)")
_RETURNING = "RETURNING instance.id"
#: Evaluated once, before the first row is touched.
_IS_PROVEN = "AND move.partition = ANY (ARRAY(SELECT partition FROM proven))"


def lone_move(batch: CommitBatch) -> MoveRows | None:
    """The rows of `batch` where all of it can be written so."""
    if set(kinds_of(batch)) not in _KINDS or illegal(batch):
        return None
    (move,) = move_rows(batch)
    return move


async def commit_alone(driver: DriverConnection, batch: CommitBatch, *, move: MoveRows) -> CommitReport:
    """Write the lone `move` of `batch`.

    Raises ``RefusedDataError`` where the server refuses a row as data; then nothing is written.
    """
    touched = frozenset(row.partition for rows in (batch.assigns, batch.successes) for row in rows)
    claims = {proof.partition: proof for proof in batch.proofs}
    written = [proof for partition, proof in claims.items() if partition in touched]
    others = [proof for partition, proof in claims.items() if partition not in touched]
    try:
        partitions, ids, payloads = await driver.fetchrow(
            _text(move.statement, with_payloads=any(row.wants_payload for row in batch.assigns)),
            *_proof_columns(written),
            *_proof_columns(others),
            *columns(move.rows),
        )
    except Exception as error:
        if data_problem(error) is None:
            raise
        raise RefusedDataError from error
    proven, moved = frozenset(partitions), frozenset(ids)
    unmatched = [row[0] for row in move.rows if row[1] in proven and row[0] not in moved]
    lost = (touched | claims.keys()) - proven
    return CommitReport(lost, frozenset(map(str, unmatched)), payloads=dict(zip(ids, payloads, strict=False)))


def _proof_columns(proofs: Sequence[Proof]) -> list[list[int] | list[str]]:
    return [
        [proof.partition for proof in proofs],
        [proof.owner for proof in proofs],
        [proof.epoch for proof in proofs],
    ]


@cache
def _text(name: str, *, with_payloads: bool) -> str:
    """The statement for the move whose own is ``sql/<name>.sql``."""
    payload = "instance.payload" if with_payloads else "NULL::bytea AS payload"
    text = statement(name).replace(_RETURNING, f"  {_IS_PROVEN}\n{_RETURNING}, {payload}")
    shifted = _PARAMETER.sub(lambda found: f"${int(found[1]) + _PROOF_COUNT}", text)
    return statement("proven_move").format(move=shifted)
