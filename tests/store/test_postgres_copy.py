"""Long lists go to PostgreSQL by COPY: with the receipts, the order and the refusals of short ones."""

from __future__ import annotations

from ostinato.core.states import State
from ostinato.store.batches import SubmitReceipt
from ostinato.store.postgres.commit import COPIED_MIN
from ostinato.store.postgres.store import PostgresStore
from ostinato.testing.contracts.store_kit import (
    Owner,
    counts,
    end_attempt,
    history_row,
    make_instance,
    make_submission,
)


async def test_a_long_list_of_which_some_are_known_makes_the_others(store: PostgresStore) -> None:
    await store.submit([make_submission(7), make_submission("fired", fire_trigger="t", fire_us=5)])
    wanted = [make_submission(number) for number in range(COPIED_MIN)]
    wanted.append(make_submission("again", fire_trigger="t", fire_us=5))
    receipts = await store.submit(wanted)
    assert receipts[-1] == SubmitReceipt("fired", created=False)
    known = [receipt.instance_id for receipt in receipts[:-1] if not receipt.created]
    assert known == [make_instance(7).id]
    assert await counts(store) == {"pending": COPIED_MIN + 1}


async def test_a_long_history_keeps_its_order_without_what_cannot_be_stored(store: PostgresStore) -> None:
    owner = await Owner.of(store)
    rows = await owner.run(*(make_instance(number) for number in range(COPIED_MIN)))
    batch = owner.batch()
    batch.ended_attempts = [end_attempt(row, State.RETRY_WAITING) for row in rows]
    batch.history = [history_row(row, sentence=f"{place}") for place in range(2) for row in reversed(rows)]
    batch.history[3].sentence = "\ud800"
    offender = batch.history[3].instance_id
    report = await store.commit(batch)
    assert set(report.rejected) == {offender}
    for row in rows:
        sentences = [each.sentence for each in await store.history(row.id)]
        assert sentences == ([] if row.id == offender else ["0", "1"])
    assert await counts(store) == {"retry_waiting": COPIED_MIN - 1, "running": 1}
