"""Requests of people and programs."""

from __future__ import annotations

import msgspec
import pytest
from support.partition_facts import NOW_US, instance, request, row, task

from ostinato.core.definition import TaskRow
from ostinato.core.instants import SECOND
from ostinato.core.model import HistoryKind
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.expire import expire
from ostinato.core.partition.request import cancel, delete, drain, replay, set_flags
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import Hold, State


@pytest.mark.parametrize("state", [State.PENDING, State.RETRY_WAITING, State.BLOCKED])
def test_c131_what_waits_is_cancelled_at_once(state: State) -> None:
    effects = Effects()
    cancel(request("cancel"), instance(state=state), now_us=NOW_US, into=effects)
    assert effects.batch.ended_waiting[0].state is State.CANCELLED
    assert effects.batch.answers[0].code == "OK"
    assert effects.batch.history[0].by == "ada"


def test_what_runs_is_asked_to_end_and_stays_running() -> None:
    effects = Effects()
    subject = instance(state=State.RUNNING, attempt=2, attempt_id="a2", worker_id="w")
    cancel(request("cancel", body=b'{"reason":"stop"}'), subject, now_us=NOW_US, into=effects)
    assert effects.batch.cancel_requests[0].expected_attempt == 2
    assert effects.cancel_signals[0].reason == "stop"
    assert effects.batch.history[0].kind is HistoryKind.CANCEL_REQUESTED
    assert effects.batch.answers[0].code == "OK"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.SUCCESS, "INSTANCE_TERMINAL"),
        (State.FAILED, "INSTANCE_TERMINAL"),
        (State.SKIPPED, "INSTANCE_TERMINAL"),
        (State.CANCELLED, "OK"),
    ],
)
def test_c131_a_terminal_one_is_a_conflict_and_a_second_cancel_is_not(state: State, code: str) -> None:
    effects = Effects()
    cancel(request("cancel"), instance(state=state), now_us=NOW_US, into=effects)
    assert effects.batch.answers[0].code == code
    assert effects.batch.ended_waiting == []


def test_an_unknown_instance_is_answered() -> None:
    effects = Effects()
    cancel(request("cancel"), None, now_us=NOW_US, into=effects)
    assert effects.batch.answers[0].code == "INSTANCE_NOT_FOUND"


def test_a_replay_pins_the_same_version_again() -> None:
    effects = Effects()
    ended = instance(state=State.FAILED, attempt=4, generation=2, task_version=1, payload=b'{"a":1}')
    replay(request("replay"), ended, task=row(task(), version=3), pinned=task(), now_us=NOW_US, into=effects)
    (move,) = effects.batch.replays
    assert (move.task_version, move.payload, move.expected_generation) == (1, b'{"a":1}', 2)
    assert effects.batch.history[0].generation == 3


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "INSTANCE_SUCCEEDED"),
        (b'{"force": true}', "OK"),
        (b'{"force": true, "generation": 2}', "OK"),
        # Whoever asks late is told that first, not that it was a success.
        (b'{"generation": 1}', "VERSION_CONFLICT"),
        (b'{"force": true, "generation": 3}', "VERSION_CONFLICT"),
    ],
)
def test_c193_a_success_is_replayed_by_force_and_as_the_generation_that_was_seen(
    body: bytes, code: str
) -> None:
    effects = Effects()
    ended = instance(state=State.SUCCESS, generation=2)
    replay(request("replay", body=body), ended, task=row(task()), pinned=task(), now_us=NOW_US, into=effects)
    assert effects.batch.answers[0].code == code
    assert len(effects.batch.replays) == (code == "OK")


def test_c193_a_replay_of_what_runs_again_already_is_told_so() -> None:
    effects = Effects()
    again = instance(state=State.PENDING, generation=2)
    replay(
        request("replay", body=b'{"generation": 1}'),
        again,
        task=row(task()),
        pinned=task(),
        now_us=NOW_US,
        into=effects,
    )
    (answer,) = effects.batch.answers
    assert answer.code == "VERSION_CONFLICT"
    assert "has been replayed meanwhile: it is at generation 2, not 1" in answer.message


def test_a_replay_may_take_the_latest_version_and_another_payload() -> None:
    effects = Effects()
    body = b'{"latest": true, "payload": {"a": 2}}'
    ended = instance(state=State.CANCELLED)
    replay(
        request("replay", body=body),
        ended,
        task=row(task(), version=3),
        pinned=task(),
        now_us=NOW_US,
        into=effects,
    )
    (move,) = effects.batch.replays
    assert (move.task_version, move.payload) == (3, b'{"a": 2}')


def test_a_live_instance_cannot_be_replayed() -> None:
    effects = Effects()
    running = instance(state=State.RUNNING)
    replay(request("replay"), running, task=row(task()), pinned=task(), now_us=NOW_US, into=effects)
    assert effects.batch.answers[0].code == "INSTANCE_NOT_TERMINAL"
    assert effects.batch.replays == []


def test_c035_disable_cancels_what_waits_and_answers_with_the_last_batch() -> None:
    effects = Effects()
    waiting = [instance("i1"), instance("i2", state=State.RETRY_WAITING)]
    set_flags(
        request("disable", task_name="t"),
        row(task()),
        triggers=[],
        waiting=waiting,
        more_waiting=True,
        now_us=NOW_US,
        into=effects,
    )
    assert [ended.instance_id for ended in effects.batch.ended_waiting] == ["i1", "i2"]
    assert effects.batch.flags[0].disabled is True
    assert effects.batch.answers == []


def test_pausing_an_unknown_task_is_answered() -> None:
    effects = Effects()
    set_flags(
        request("pause", task_name="t"),
        None,
        triggers=[],
        waiting=[],
        more_waiting=False,
        now_us=NOW_US,
        into=effects,
    )
    assert effects.batch.answers[0].code == "TASK_NOT_FOUND"
    assert effects.batch.flags == []


def test_an_expired_retry_says_what_held_it() -> None:
    policy = RetryPolicy(window_us=10 * SECOND)
    waiting = instance(
        state=State.RETRY_WAITING,
        attempt=1,
        counters=Counters(failures=1, window_opened_us=NOW_US),
        expires_us=NOW_US + 10 * SECOND,
        hold=Hold.BUSY,
        reason="the worker that can run it is busy",
    )
    effects = Effects()
    expire(waiting, task(retry=policy), now_us=NOW_US + 11 * SECOND, into=effects)
    (ended,) = effects.batch.ended_waiting
    assert ended.state is State.FAILED
    assert ended.failure is not None
    assert ended.failure.code == "WINDOW_PASSED"
    assert "the worker that can run it is busy" in ended.reason


def test_c035_a_delete_first_disables_the_task_and_cancels_what_waits() -> None:
    effects = Effects()
    waiting = [
        instance("i1"),
        instance("i2", state=State.RETRY_WAITING),
        instance("i3", state=State.BLOCKED),
        instance("i4", hold=Hold.OVERLAP),
    ]
    delete(request("delete", task_name="t"), row(task()), waiting=waiting, now_us=NOW_US, into=effects)
    assert [ended.instance_id for ended in effects.batch.ended_waiting] == ["i1", "i2", "i3", "i4"]
    assert {ended.state for ended in effects.batch.ended_waiting} == {State.CANCELLED}
    assert effects.batch.ended_waiting[0].reason == "cancelled: task default/t was deleted by ada"
    assert effects.batch.flags[0].disabled is True
    assert effects.batch.deletions == effects.batch.answers == []


def test_a_delete_removes_a_task_of_which_nothing_waits_and_is_answered_with_it() -> None:
    effects = Effects()
    disabled = msgspec.structs.replace(row(task()), disabled=True)
    delete(request("delete", task_name="t"), disabled, waiting=[], now_us=NOW_US, into=effects)
    (deletion,) = effects.batch.deletions
    assert (deletion.namespace, deletion.task, deletion.partition) == ("default", "t", 3)
    assert [answer.code for answer in effects.batch.answers] == ["OK"]


def test_deleting_an_unknown_task_is_answered() -> None:
    effects = Effects()
    delete(request("delete", task_name="t"), None, waiting=[], now_us=NOW_US, into=effects)
    assert effects.batch.answers[0].code == "TASK_NOT_FOUND"
    assert effects.batch.deletions == []


@pytest.mark.parametrize(
    ("known", "code"),
    [(None, "TASK_NOT_FOUND"), (msgspec.structs.replace(row(task()), disabled=True), "TASK_DISABLED")],
)
def test_an_instance_of_a_deleted_or_disabled_task_is_not_replayed(known: TaskRow | None, code: str) -> None:
    effects = Effects()
    ended = instance(state=State.FAILED)
    replay(request("replay"), ended, task=known, pinned=task(), now_us=NOW_US, into=effects)
    assert effects.batch.answers[0].code == code
    assert effects.batch.replays == []


@pytest.mark.parametrize(("name", "code"), [("crunch", "OK"), (None, "WORKER_NOT_FOUND")])
def test_a_drain_is_answered_by_whether_the_worker_is_connected(name: str | None, code: str) -> None:
    effects = Effects()
    drain(request("drain"), "w1", worker_name=name, now_us=NOW_US, into=effects)
    (answer,) = effects.batch.answers
    assert answer.code == code
    assert (name or "w1") in answer.message


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b'{"reason": 1}', b'{"reason": "\xff"}', b"[" * 9_000])
@pytest.mark.parametrize("kind", ["cancel", "replay"])
def test_arguments_that_cannot_be_read_are_answered(kind: str, body: bytes) -> None:
    effects = Effects()
    asked = request(kind, body=body)
    if kind == "cancel":
        cancel(asked, instance(), now_us=NOW_US, into=effects)
    else:
        ended = instance(state=State.FAILED)
        replay(asked, ended, task=row(task()), pinned=task(), now_us=NOW_US, into=effects)
    (answer,) = effects.batch.answers
    assert answer.code == "INVALID_VALUE"
    assert f"the arguments of the {kind} cannot be read" in answer.message
    assert effects.batch.replays == effects.batch.ended_waiting == []
