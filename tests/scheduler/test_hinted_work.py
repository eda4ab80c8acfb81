"""What a hint names is started before the queue is looked at; a hint that is wrong starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from support.cluster import Cluster, python_task, worker_of

from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.core.states import Hold, State
from ostinato.store.batches import CommitBatch, CommitReport, FoundWork, HeldQuery, Submission, SubmitReceipt
from ostinato.store.hints import Hints, named
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual


class _HintingStore(MemoryStore):
    """Its hints name what is submitted. It keeps in which order work was looked for and assigned."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.hints = Hints()
        #: Named by hints all the time.
        self.repeated: list[Instance] = []
        self.did: list[str] = []

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        self.hints.add([named(each.instance) for each in submissions])
        return await super().submit(submissions)

    def take_hinted(self) -> list[Instance]:
        return [*self.hints.take(), *map(named, self.repeated)]

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        self.did.append("look")
        return await super().find_work(partitions, now_us=now_us, limit=limit, held=held)

    async def commit(self, batch: CommitBatch) -> CommitReport:
        self.did += ["assign"] * len(batch.assigns)
        return await super().commit(batch)

    async def hint(self, *instances: Instance) -> None:
        """A hint that names these comes, for whatever reason."""
        self.hints.add([named(each) for each in instances])
        await self.add_requests([])


async def _idle(cluster: Cluster) -> None:
    """Everything that was found has been dealt with."""
    await cluster.sleep(SECOND)


def test_what_a_hint_names_is_assigned_before_the_next_look_with_its_payload() -> None:
    async def story() -> None:
        store = _HintingStore()
        cluster = Cluster(store=store)
        task = python_task()
        await cluster.start(task)
        await worker_of(cluster, lambda item: item.payload)
        await _idle(cluster)
        store.did.clear()
        identity = await cluster.submit(task, payload=b'{"a":1}')
        assert (await cluster.in_state(identity, State.SUCCESS)).result == b'{"a":1}'
        assert store.did[0] == "assign"
        # And then for all else.
        assert store.did[1] == "look"
        assert store.did.count("assign") == 1
        await cluster.stop()

    run_virtual(story())


def test_a_hint_that_is_wrong_by_now_starts_nothing() -> None:
    async def story() -> None:
        store = _HintingStore()
        cluster = Cluster(store=store)
        task = python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda _: b"1")
        finished = await cluster.submit(task)
        await cluster.in_state(finished, State.SUCCESS)
        await _idle(cluster)
        row = await cluster.instance(finished)
        row.id = "nobody"
        await store.hint(await cluster.instance(finished), row)
        await _idle(cluster)
        assert len(worker.assigned) == 1
        assert (await cluster.instance(finished)).attempt == 1
        assert not cluster.node.parts.ownership.memory.running
        await cluster.stop()

    run_virtual(story())


def test_what_a_hint_names_waits_as_anything_else() -> None:
    """For a resume, for its time, and behind what was there before."""

    async def story() -> None:
        store = _HintingStore()
        cluster = Cluster(store=store)
        task = python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda _: None, slots=1)
        await _idle(cluster)
        await cluster.ask("pause", task="t")
        first = await cluster.submit(task)
        await cluster.until(lambda: _is_held(cluster, first, Hold.PAUSED))
        await cluster.ask("resume", task="t")
        await cluster.in_state(first, State.RUNNING)
        late = await cluster.submit(task, due_us=cluster.clock.wall_us() + MINUTE)
        await store.hint(await cluster.instance(late))
        waiting: list[str] = []
        for _ in range(3):
            waiting.append(await cluster.submit(task))
            await _idle(cluster)
        store.repeated = [await cluster.instance(waiting[2])]
        for expected in [first, *waiting]:
            (item,) = worker.running.values()
            assert item.instance_id == expected
            await worker.finish(item, b"1")
            await _idle(cluster)
        assert (await cluster.instance(late)).state is State.PENDING
        await cluster.in_state(late, State.RUNNING)
        await cluster.stop()

    run_virtual(story())


async def _is_held(cluster: Cluster, identity: str, hold: Hold) -> bool:
    return (await cluster.instance(identity)).hold is hold
