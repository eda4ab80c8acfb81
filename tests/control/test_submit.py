"""What becomes of requests to run a task."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from ostinato.control.apply import apply
from ostinato.control.seen_tasks import SeenTasks
from ostinato.control.submit import KEY_LIFETIME_US, SubmitRequest, submit
from ostinato.core.changes import CommitBatch, SetTaskFlags
from ostinato.core.definition import Parameter, PythonSpec, TaskDefinition, TaskRef, TaskRow
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.errors import ConflictError, UnavailableError, UserError
from ostinato.store.batches import NodeRow, Submission, SubmitReceipt
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual

REF = TaskRef("default", "report")
TASK = TaskDefinition(
    namespace="default",
    name="report",
    executor=PythonSpec("m:f", parameters=(Parameter("day"), Parameter("force", required=False))),
    priority=3,
    queue_timeout_us=5 * MINUTE,
)


class Desk:
    """A store with one task, and submissions to it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock) if store is None else store
        self.rng = Random(1)
        self.seen = SeenTasks()

    async def open(self, task: TaskDefinition = TASK) -> Desk:
        await apply(self.store, [task], now_us=START_US)
        return self

    async def submit(self, **changes: object) -> SubmitReceipt:
        return (await self.submit_all([self.request(**changes)]))[0]

    async def submit_all(self, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        now_us = self.clock.wall_us()
        return await submit(self.store, requests, now_us=now_us, rng=self.rng, seen=self.seen)

    def request(self, **changes: object) -> SubmitRequest:
        base: dict[str, object] = {"task": "report", "payload": b'{"day": 1}'}
        return SubmitRequest(**{**base, **changes})  # type: ignore[arg-type]  # wrong ones are tested too

    async def instance(self, receipt: SubmitReceipt) -> Instance:
        return (await self.store.get_instances([receipt.instance_id]))[receipt.instance_id]

    async def count(self) -> int:
        return len((await self.store.live_instances([REF], limit=1000))[REF])


def test_an_instance_pins_the_newest_version_with_the_tasks_defaults() -> None:
    async def story() -> None:
        desk = await Desk().open()
        await apply(desk.store, [msgspec.structs.replace(TASK, priority=4)], now_us=START_US)
        receipt = await desk.submit()
        instance = await desk.instance(receipt)
        now_us = desk.clock.wall_us()
        assert receipt.created
        assert (instance.state, instance.task_version, instance.priority) == (State.PENDING, 2, 4)
        assert (instance.due_us, instance.created_us) == (now_us, now_us)
        assert instance.expires_us == now_us + 5 * MINUTE
        assert instance.partition == (await desk.store.get_tasks([REF]))[REF].partition

    run_virtual(story())


@pytest.mark.parametrize(
    ("changes", "due_after_us"),
    [
        ({"delay_us": 0}, 0),
        ({"delay_us": 90 * SECOND}, 90 * SECOND),
        ({"due_us": START_US + 2 * HOUR}, 2 * HOUR),
        ({"due_us": START_US - HOUR}, 0),
    ],
)
def test_a_delay_or_instant_sets_the_due_time_and_the_past_means_now(
    changes: dict[str, object], due_after_us: int
) -> None:
    async def story() -> None:
        desk = await Desk().open()
        instance = await desk.instance(await desk.submit(**changes))
        assert instance.due_us == desk.clock.wall_us() + due_after_us
        assert instance.expires_us == instance.due_us + 5 * MINUTE

    run_virtual(story())


REFUSED: list[tuple[dict[str, object], str, str]] = [
    ({"task": "reprot"}, "TASK_NOT_FOUND", ""),
    ({"task": "a b"}, "INVALID_NAME", "task"),
    ({"namespace": ""}, "INVALID_NAME", "namespace"),
    ({"payload": b"[]"}, "INVALID_PAYLOAD", "payload"),
    ({"payload": b"{}"}, "INVALID_PAYLOAD", "payload.day"),
    ({"payload": b'{"day": 1, "froce": 2}'}, "INVALID_PAYLOAD", "payload.froce"),
    ({"payload": b'{"day": "' + b"x" * 300_000 + b'"}'}, "PAYLOAD_TOO_LARGE", "payload"),
    ({"priority": 10}, "INVALID_VALUE", "priority"),
    ({"priority": 1.5}, "INVALID_VALUE", "priority"),
    ({"priority": True}, "INVALID_VALUE", "priority"),
    ({"payload": '{"day": 1}'}, "INVALID_PAYLOAD", "payload"),
    ({"key": "a\0"}, "INVALID_NAME", "key"),
    ({"key": "  "}, "INVALID_VALUE", "key"),
    ({"key": 0}, "INVALID_VALUE", "key"),
    ({"delay_us": 1.5}, "INVALID_DURATION", "delay"),
    ({"due_us": 1e15}, "INVALID_INSTANT", "at"),
    ({"delay_us": -1}, "INVALID_DURATION", "delay"),
    ({"delay_us": 1, "due_us": 2}, "INVALID_VALUE", "at"),
    ({"due_us": 10**18}, "INVALID_INSTANT", "at"),
    ({"id": "mine"}, "INVALID_VALUE", "id"),
    ({"id": "8" + "0" * 25}, "INVALID_VALUE", "id"),
    ({"id": "0" * 25 + "U"}, "INVALID_VALUE", "id"),
]


@pytest.mark.parametrize(("changes", "code", "field"), REFUSED, ids=lambda entry: str(entry)[:40])
def test_a_wrong_request_is_refused_by_field_and_nothing_is_written(
    changes: dict[str, object], code: str, field: str
) -> None:
    async def story() -> None:
        desk = await Desk().open()
        with pytest.raises(UserError) as caught:
            await desk.submit(**changes)
        assert (caught.value.code, caught.value.field) == (code, field)
        with pytest.raises(UserError) as caught:
            await desk.submit_all([desk.request(), desk.request(**changes)])
        assert caught.value.code == code
        assert not field or caught.value.field in (f"submissions[1].{field}", field)
        assert await desk.count() == 0

    run_virtual(story())


def test_an_unknown_task_or_parameter_comes_with_the_closest_name() -> None:
    async def story() -> None:
        desk = await Desk().open()
        with pytest.raises(UserError, match=r"default/reprot does not exist \(did you mean report\?\)"):
            await desk.submit(task="reprot")
        with pytest.raises(UserError, match=r"did you mean force\?"):
            await desk.submit(payload=b'{"day": 1, "froce": 2}')
        with pytest.raises(UserError, match="namespace other has no tasks"):
            await desk.submit(namespace="other")

    run_virtual(story())


def test_a_payload_is_merged_over_the_tasks_own() -> None:
    async def story() -> None:
        desk = await Desk().open(
            msgspec.structs.replace(TASK, payload=msgspec.Raw(b'{"day": 1, "force": true}'))
        )
        instance = await desk.instance(await desk.submit(payload=b'{"force": false}'))
        assert msgspec.json.decode(instance.payload) == {"day": 1, "force": False}
        assert (await desk.instance(await desk.submit(payload=b"{}"))).payload == b'{"day":1,"force":true}'

    run_virtual(story())


async def set_flags(desk: Desk, **flags: bool) -> None:
    await desk.store.register_node(NodeRow("n", 0, "", START_US))
    partition = (await desk.store.get_tasks([REF]))[REF].partition
    proofs = await desk.store.take_partitions("n", [partition])
    change = SetTaskFlags(namespace="default", task="report", partition=partition, **flags)
    await desk.store.commit(CommitBatch(proofs=proofs, flags=[change]))


def test_a_disabled_task_refuses_and_a_paused_one_accepts() -> None:
    async def story() -> None:
        desk = await Desk().open()
        await set_flags(desk, paused=True)
        assert (await desk.submit()).created
        await set_flags(desk, disabled=True)
        with pytest.raises(ConflictError) as caught:
            await desk.submit()
        assert caught.value.code == "TASK_DISABLED"

    run_virtual(story())


def test_a_live_key_answers_an_equal_request_and_refuses_another_payload() -> None:
    async def story() -> None:
        desk = await Desk().open()
        first = await desk.submit(key="k", payload=b'{"day": 1, "force": true}')
        again = await desk.submit(key="k", payload=b'{ "force":true, "day":1 }', priority=9, delay_us=SECOND)
        assert (first.created, again.created) == (True, False)
        assert again.instance_id == first.instance_id
        with pytest.raises(ConflictError) as caught:
            await desk.submit(key="k", payload=b'{"day": 2}')
        assert (caught.value.code, caught.value.subject) == ("KEY_CONFLICT", first.instance_id)
        await desk.clock.sleep_until_us(desk.clock.boot_us() + KEY_LIFETIME_US + SECOND)
        later = await desk.submit(key="k", payload=b'{"day": 2}')
        assert later.created
        assert later.instance_id != first.instance_id

    run_virtual(story())


def test_a_conflict_among_many_says_what_became_of_the_others() -> None:
    async def story() -> None:
        desk = await Desk().open()
        await desk.submit(key="k")
        requests = [desk.request(), desk.request(key="k", payload=b'{"day": 2}')]
        with pytest.raises(ConflictError, match=r"submissions\[1\]: key 'k' is live") as caught:
            await desk.submit_all(requests)
        accepted = await desk.count() - 1
        assert f"{accepted} of the 2 submissions are accepted" in caught.value.message

    run_virtual(story())


@pytest.mark.parametrize("count", [0, 1, 999, 1_000, 32_767, 65_536])
def test_c121_any_number_of_submissions_is_accepted_whole(count: int) -> None:
    async def story() -> None:
        desk = await Desk().open()
        receipts = await desk.submit_all([desk.request()] * count)
        assert len({receipt.instance_id for receipt in receipts}) == count
        assert all(receipt.created for receipt in receipts)

    run_virtual(story())


class LosesAnAnswer(MemoryStore):
    """Commits the first submission, and then says that nobody knows."""

    is_lost = False

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        receipts = await super().submit(submissions)
        if not self.is_lost:
            self.is_lost = True
            raise UnavailableError("DATABASE_UNAVAILABLE", "the answer was lost")
        return receipts


class CountsReads(MemoryStore):
    """Counts how often tasks are read by those who submit."""

    read_count = 0

    async def get_tasks(self, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
        self.read_count += 1
        return await super().get_tasks(refs)

    async def submit_if_newest(self, submission: Submission) -> SubmitReceipt | None:
        before = self.read_count
        receipt = await super().submit_if_newest(submission)
        self.read_count = before
        return receipt


def test_a_task_that_was_seen_is_not_read_again_before_it_has_changed() -> None:
    async def story() -> None:
        store = CountsReads(VirtualClock())
        desk = await Desk(store).open()
        await desk.submit()
        before = store.read_count
        await desk.submit()
        assert store.read_count == before
        await apply(store, [msgspec.structs.replace(TASK, priority=4)], now_us=START_US)
        before = store.read_count
        first, second = await desk.submit(), await desk.submit()
        assert store.read_count == before + 1
        assert [(await desk.instance(each)).task_version for each in (first, second)] == [2, 2]

    run_virtual(story())


def test_what_was_seen_of_a_task_refuses_nothing() -> None:
    """Its parameters, and whether it is disabled, are looked up again before anybody hears a refusal."""

    async def story() -> None:
        desk = await Desk().open()
        await desk.submit()
        executor = PythonSpec("m:f", parameters=(Parameter("month"),))
        await apply(desk.store, [msgspec.structs.replace(TASK, executor=executor)], now_us=START_US)
        assert (await desk.submit(payload=b'{"month": 1}')).created
        with pytest.raises(UserError) as refused:
            await desk.submit()
        assert refused.value.code == "INVALID_PAYLOAD"

    run_virtual(story())


@pytest.mark.parametrize("key", ["", "k"])
def test_c141_a_lost_answer_is_settled_by_repeating_the_same_ids(key: str) -> None:
    async def story() -> None:
        desk = await Desk(LosesAnAnswer(VirtualClock())).open()
        receipt = await desk.submit(key=key)
        assert receipt.created
        assert await desk.count() == 1
        assert (await desk.instance(receipt)).key == key

    run_virtual(story())


OWN_ID = "01kq5zv3e8" + "a" * 16


def test_c141_a_caller_that_repeats_its_own_id_gets_one_instance() -> None:
    async def story() -> None:
        desk = await Desk().open()
        first = await desk.submit(id=OWN_ID)
        again = await desk.submit(id=OWN_ID, payload=b'{ "day":1 }')
        assert (first, again) == (SubmitReceipt(OWN_ID, created=True), SubmitReceipt(OWN_ID, created=True))
        assert await desk.count() == 1

    run_virtual(story())


def test_an_id_given_twice_at_once_is_refused_and_nothing_is_written() -> None:
    async def story() -> None:
        desk = await Desk().open()
        requests = [desk.request(id=OWN_ID), desk.request(), desk.request(id=OWN_ID)]
        with pytest.raises(ConflictError, match="given twice") as caught:
            await desk.submit_all(requests)
        assert (caught.value.code, caught.value.subject) == ("KEY_CONFLICT", OWN_ID)
        assert caught.value.field == "submissions[2].id"
        assert await desk.count() == 0

    run_virtual(story())


@pytest.mark.parametrize("changes", [{"payload": b'{"day": 2}'}, {"task": "audit"}])
def test_an_id_of_another_submission_is_refused_and_that_one_stays_as_it_is(
    changes: dict[str, object],
) -> None:
    async def story() -> None:
        desk = await Desk().open()
        await apply(desk.store, [msgspec.structs.replace(TASK, name="audit")], now_us=START_US)
        first = await desk.submit(id=OWN_ID)
        with pytest.raises(ConflictError, match="of default/report") as caught:
            await desk.submit(id=OWN_ID, **changes)
        assert (caught.value.code, caught.value.field) == ("KEY_CONFLICT", "id")
        assert caught.value.subject == first.instance_id
        instance = await desk.instance(first)
        assert (instance.ref, instance.payload) == (REF, b'{"day": 1}')
        assert await desk.count() == 1

    run_virtual(story())
