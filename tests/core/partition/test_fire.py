"""Due triggers become instances, under misfire and overlap rules."""

from __future__ import annotations

import pytest
from support.partition_facts import NOW_US, instance, rng, row, task, trigger

from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.model import HistoryKind
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.fire import DueTrigger, LiveTask, admit, fire
from ostinato.core.partition.switch import overdue_before_edit, skip_to_now, switch_version
from ostinato.core.schedule.trigger import CronTrigger, IntervalTrigger
from ostinato.core.states import Hold, State

HOURLY = CronTrigger(cron="0 * * * *")


def fired(
    live: LiveTask,
    *,
    overlap: str | None = None,
    now_us: int = NOW_US,
    spec: CronTrigger = HOURLY,
    shards: int = 1,
    queue_bound: int = 100,
) -> Effects:
    effects = Effects()
    definition = task(overlap=overlap, triggers=(spec,), shards=shards, queue_bound=queue_bound)
    due = DueTrigger(trigger(spec, next_us=NOW_US), definition, row(definition))
    fire(due, live, now_us=now_us, rng=rng(), into=effects)
    return effects


def test_a_fire_and_the_next_time_are_one_batch() -> None:
    effects = fired(LiveTask(known={}))
    (made,) = effects.batch.inserts
    (advance,) = effects.batch.advances
    assert (made.fire_us, made.due_us, made.state) == (NOW_US, NOW_US, State.PENDING)
    assert (advance.expected_next_us, advance.next_us, advance.last_us) == (NOW_US, NOW_US + HOUR, NOW_US)


def test_nothing_fires_before_its_time() -> None:
    """I4."""
    effects = fired(LiveTask(known={}), now_us=NOW_US - 1)
    assert effects.batch.inserts == []


def test_a_fire_refused_by_overlap_is_an_instance_with_the_reason() -> None:
    """C047: nothing without a row."""
    old = instance(state=State.RUNNING, attempt=1, attempt_id="a1")
    effects = fired(LiveTask(known={"i1": old}))
    (made,) = effects.batch.inserts
    assert made.state is State.SKIPPED
    assert made.finished_us == NOW_US
    assert "overlap forbid" in made.reason
    assert effects.batch.history[0].kind is HistoryKind.SKIPPED
    assert effects.fired[0].skipped_reason == made.reason


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.RETRY_WAITING, State.BLOCKED])
def test_every_live_state_counts_as_an_overlap(state: State) -> None:
    effects = fired(LiveTask(known={"i1": instance(state=state)}))
    assert effects.batch.inserts[0].state is State.SKIPPED


def test_queue_waits_held_with_the_reason() -> None:
    effects = fired(LiveTask(known={"i1": instance(state=State.RUNNING)}), overlap="queue")
    (made,) = effects.batch.inserts
    assert (made.state, made.hold) == (State.PENDING, Hold.OVERLAP)
    assert made.reason


def test_c045_replace_waits_until_the_old_attempt_has_ended() -> None:
    old = instance(state=State.RUNNING, attempt=1, attempt_id="a1", worker_id="w1")
    effects = fired(LiveTask(known={"i1": old}), overlap="replace")
    (made,) = effects.batch.inserts
    assert made.hold is Hold.OVERLAP
    (wish,) = effects.batch.cancel_requests
    assert wish.instance_id == "i1"
    assert wish.reason == f"replaced by {made.id}"
    (signal,) = effects.cancel_signals
    assert (signal.worker_id, signal.attempt_id) == ("w1", "a1")


def test_a_waiting_replacement_is_itself_replaced() -> None:
    old = instance(state=State.RUNNING, attempt=1)
    waiting = instance("i2", hold=Hold.OVERLAP)
    effects = fired(LiveTask(known={"i1": old, "i2": waiting}), overlap="replace")
    (ended,) = effects.batch.ended_waiting
    assert (ended.instance_id, ended.state) == ("i2", State.CANCELLED)


def test_a_late_fire_made_up_says_so() -> None:
    effects = fired(LiveTask(known={}), now_us=NOW_US + 30 * MINUTE)
    assert len(effects.batch.inserts) == 1
    assert effects.batch.history[0].kind is HistoryKind.MISFIRE


def test_c031_a_fire_that_is_dropped_leaves_a_skipped_row_with_its_lateness() -> None:
    effects = fired(
        LiveTask(known={}), now_us=NOW_US + 10 * MINUTE, spec=CronTrigger(cron="0 * * * *", misfire="skip")
    )
    (made,) = effects.batch.inserts
    assert (made.state, made.fire_us) == (State.SKIPPED, NOW_US)
    assert "1 fire missed" in made.reason
    assert effects.batch.history[0].sentence == made.reason


def test_a_submission_under_forbid_is_skipped_when_another_is_live() -> None:
    definition = task(overlap="forbid")
    effects = Effects()
    assert not admit(instance("i2"), row(definition), earlier=[instance()], now_us=NOW_US, into=effects)
    assert effects.batch.ended_waiting[0].state is State.SKIPPED


def test_a_submission_is_free_to_overlap_unless_the_task_says_otherwise() -> None:
    effects = Effects()
    assert admit(instance("i2"), row(task()), earlier=[instance()], now_us=NOW_US, into=effects)
    assert effects.is_empty()


def test_c029_saving_an_unchanged_schedule_keeps_the_due_fire() -> None:
    kept = trigger(HOURLY, next_us=NOW_US)
    effects = Effects()
    switch_version(
        task(triggers=(HOURLY,), labels={"a": "b"}),
        version=2,
        partition=3,
        in_force=[kept],
        edited_us=NOW_US + 2 * SECOND,
        into=effects,
    )
    (switch,) = effects.batch.switches
    assert [(new.id, new.next_us, new.task_version) for new in switch.triggers] == [(kept.id, NOW_US, 2)]


def test_c029_a_changed_schedule_starts_after_the_edit() -> None:
    changed = CronTrigger(cron="5 * * * *")
    old = trigger(HOURLY, next_us=NOW_US)
    edited_us = NOW_US + 2 * SECOND
    assert overdue_before_edit([old], edited_us=edited_us) == [old]
    effects = Effects()
    switch_version(
        task(triggers=(changed,)), version=2, partition=3, in_force=[old], edited_us=edited_us, into=effects
    )
    (new,) = effects.batch.switches[0].triggers
    assert new.next_us == NOW_US + 5 * MINUTE


def test_an_interval_is_anchored_where_the_trigger_came_into_force() -> None:
    every = IntervalTrigger(every_us=10 * MINUTE)
    effects = Effects()
    switch_version(
        task(triggers=(every,)), version=1, partition=3, in_force=[], edited_us=NOW_US + 7, into=effects
    )
    (new,) = effects.batch.switches[0].triggers
    assert (new.created_us, new.next_us) == (NOW_US + 7, NOW_US + 7 + 10 * MINUTE)


def test_after_a_pause_the_past_is_not_fired_again() -> None:
    effects = Effects()
    old = trigger(HOURLY, next_us=NOW_US)
    skip_to_now(old.ref, [old], now_us=NOW_US + 3 * HOUR, into=effects)
    (advance,) = effects.batch.advances
    assert (advance.expected_next_us, advance.next_us) == (NOW_US, NOW_US + 4 * HOUR)


# ── shards ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_fire_makes_an_instance_for_each_shard_in_one_batch() -> None:
    effects = fired(LiveTask(known={}), shards=3)
    made = effects.batch.inserts
    assert [(row.fire_us, row.shard, row.shard_total) for row in made] == [
        (NOW_US, number, 3) for number in range(3)
    ]
    assert len({row.id for row in made}) == 3
    assert all(row.state is State.PENDING and row.hold is None for row in made)
    assert len(effects.batch.advances) == 1


def test_overlap_refuses_all_shards_of_a_fire_or_none() -> None:
    running = instance(state=State.RUNNING, attempt=1, attempt_id="a1", shard=2, shard_total=3)
    effects = fired(LiveTask(known={"i1": running}), shards=3)
    assert [row.state for row in effects.batch.inserts] == [State.SKIPPED] * 3
    assert len(effects.batch.history) == 3


def _live(*, fires: int, shards: int) -> LiveTask:
    known = {
        f"f{fire_number}-{shard}": instance(
            id=f"f{fire_number}-{shard}",
            fire_trigger="t",
            fire_us=NOW_US - MINUTE + fire_number,
            shard=shard,
            shard_total=shards,
        )
        for fire_number in range(fires)
        for shard in range(shards)
    }
    return LiveTask(known=known)


@pytest.mark.parametrize(("fires", "state"), [(2, State.PENDING), (3, State.SKIPPED)])
def test_the_queue_is_bounded_in_fires_not_in_shards(fires: int, state: State) -> None:
    effects = fired(_live(fires=fires, shards=4), overlap="queue", shards=4, queue_bound=2)
    assert [row.state for row in effects.batch.inserts] == [state] * 4


def test_a_fire_that_replaces_ends_every_shard_of_the_one_before_and_waits_as_a_whole() -> None:
    live = _live(fires=1, shards=3)
    live.known["f0-1"].state = State.RUNNING
    effects = fired(live, overlap="replace", shards=2)
    made = effects.batch.inserts
    assert [row.hold for row in made] == [Hold.OVERLAP] * 2
    assert [wish.instance_id for wish in effects.batch.cancel_requests] == ["f0-1"]
    assert [row.instance_id for row in effects.batch.ended_waiting] == ["f0-0", "f0-2"]
