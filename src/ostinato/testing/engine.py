"""What is done on the loop of a test's cluster: a node, its workers, a store in memory, and looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from random import Random

from ostinato.control.apply import apply
from ostinato.control.explain import whole_story
from ostinato.control.pause import FlagVerb, set_task_flag
from ostinato.control.queries import collect_instances
from ostinato.control.replay import replay
from ostinato.control.requests import Asker, require_ok
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.instants import format_duration
from ostinato.core.states import LIVE_STATES, TERMINAL_STATES
from ostinato.errors import InternalError, OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import InstanceEnded, LoopFailed, Record
from ostinato.scheduler.node import SchedulerNode
from ostinato.sdk.app import App
from ostinato.store.batches import InstanceFilter
from ostinato.store.changes import ChangeSignal
from ostinato.store.memory import MemoryStore
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.instance import Instance, look_at
from ostinato.testing.parts import ADDRESS, NODE_CONFIG, AskingClock, by_labels, worker_config
from ostinato.testing.script import Script
from ostinato.testing.virtual_clock import VirtualClock, VirtualTimeLoop
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.worker.supervisor import Supervisor


class NotEnded(AssertionError):
    """Virtual time has passed, and what the test waits for has not ended."""

    def __init__(self, message: str, *, told_id: str = "") -> None:
        """`told_id` is the instance whose story the message tells; empty: it tells none."""
        super().__init__(message)
        self.told_id = told_id


@contextmanager
def of_this_cluster() -> Iterator[None]:
    """Say of an id that no instance has what may be so in a test, where nothing is ever deleted."""
    try:
        yield
    except OstinatoError as error:
        if error.code == "INSTANCE_NOT_FOUND":
            error.hint = (
                "this cluster has made no such instance: it may be another test's, cluster's or app's"
            )
        raise


class Engine:
    """Coroutines of the cluster's loop. `start` comes first, `stop` last."""

    def __init__(
        self, apps: Sequence[App], *, loop: VirtualTimeLoop, start_us: int, rng: Random, script: Script
    ) -> None:
        self.apps = apps
        self.clock = clock = VirtualClock(start_us=start_us, loop=loop)
        self.asking_clock = AskingClock(start_us=start_us, loop=loop)
        self.store = MemoryStore(clock)
        #: Notified when an instance has ended.
        self._ends = ChangeSignal(clock)
        self._loop = loop
        self._rng = rng
        self._script = script
        self._asker = Asker(clock=self.asking_clock, rng=rng, by="test")
        self._network = InProcessNetwork()
        self._node = SchedulerNode(
            NODE_CONFIG,
            store=self.store,
            transport=self._network.node_transport(ADDRESS),
            clock=clock,
            rng=rng,
            hooks=Hooks([self]),
        )
        self._workers: list[tuple[Supervisor, asyncio.Task[None]]] = []
        self._known: set[TaskRef] = set()
        #: What stands for tasks of other kinds, which any worker may get.
        self._elsewhere: dict[TaskRef, Callable[..., object]] = {}
        self._applied: list[TaskDefinition] = []

    def on(self, record: Record) -> None:
        """The node's hook."""
        if isinstance(record, InstanceEnded):
            self._ends.notify()
        elif isinstance(record, LoopFailed):
            # There is no world that could be away: it is a bug of ours.
            message = f"loop {record.loop} failed: {record.error_message}\n{record.traceback}"
            self._script.report(InternalError("INTERNAL", message))

    async def start(self) -> None:
        """Start the node, and a worker for what the apps declare, whose triggers are then in force."""
        await self.store.open()
        await self._node.start()
        await self.catch_up()

    async def stop(self) -> None:
        """End what runs, the worker and the node."""
        for supervisor, _ in self._workers:
            supervisor.stop()
        await asyncio.gather(*(running for _, running in self._workers))
        await self._node.stop()

    def definitions(self) -> list[TaskDefinition]:
        """Of all apps, in the order of their declaration."""
        return [definition for app in self.apps for definition in app.definitions()]

    async def catch_up(self) -> None:
        """Take over what the apps have declared since the last time."""
        definitions = self.definitions()
        if definitions == self._applied:
            return
        for app in self.apps:
            await apply(self.store, app.definitions(), now_us=self.clock.wall_us())
        self._applied = definitions
        new = [definition for definition in definitions if definition.ref not in self._known]
        self._known.update(definition.ref for definition in new)
        for labels, those in by_labels(new):
            await self._add_worker(labels, those)
        await self._loop.idle()

    async def _add_worker(self, labels: dict[str, str], definitions: Sequence[TaskDefinition]) -> None:
        """A worker for tasks that none has yet: a worker says what it has once, when it connects."""
        functions = {ref: task.function for app in self.apps for ref, task in app.registered.items()}
        own: dict[TaskRef, Callable[..., object]] = {}
        for ref in (definition.ref for definition in definitions):
            if ref in functions:
                own[ref] = functions[ref]
            else:
                self._elsewhere[ref] = self._script.runs_nowhere(ref)
        by_kind = {"python": own, **dict.fromkeys(("shell", "http", "container"), self._elsewhere)}
        supervisor = Supervisor(
            worker_config(len(self._workers) + 1, labels),
            clock=self.clock,
            transport=self._network.worker_transport(),
            executors=[
                InlineExecutor(those, clock=self.clock, kind=kind, conduct=self._script.conduct)
                for kind, those in by_kind.items()
            ],
            rng=self._rng,
        )
        self._workers.append((supervisor, asyncio.create_task(supervisor.run())))
        await supervisor.is_connected.wait()

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────

    async def advance(self, duration_us: int) -> None:
        """Let time pass, and let everything happen that is due by then."""
        await self.catch_up()
        until_us = self.clock.boot_us() + duration_us
        await self._loop.idle()
        await self.clock.sleep_until_us(until_us)
        await self._loop.idle()

    async def until_ended(self, instance_id: str | None, *, within_us: int) -> None:
        """Let time pass until an instance has ended, or every one has. Raises `NotEnded`."""
        await self.catch_up()
        until_us = self.clock.boot_us() + within_us
        while left := await self._live(instance_id):
            if self.clock.boot_us() >= until_us:
                raise await self._not_ended(left, within_us=within_us)
            await self.next_end(until_us)
        await self._loop.idle()

    async def next_end(self, until_us: int) -> None:
        """Return when an instance has ended, or at `until_us` (boot time) after what is due then."""
        if not await self._ends.wait(until_us):
            await self._loop.idle()

    async def _not_ended(self, left: list[str], *, within_us: int) -> NotEnded:
        """The error for instances that go on, with the story of the oldest."""
        told = await self.look(left[-1], zone=None)
        what = f"{told!r} has" if len(left) == 1 else f"{told!r} and {len(left) - 1} more have"
        message = f"{what} not ended within {format_duration(within_us)}\n\n{told.story}"
        return NotEnded(message, told_id=told.id)

    async def _live(self, instance_id: str | None) -> list[str]:
        if instance_id is not None:
            found = (await self.store.get_instances([instance_id])).get(instance_id)
            return [] if found is None or found.state in TERMINAL_STATES else [instance_id]
        where = InstanceFilter(states=tuple(sorted(LIVE_STATES)))
        page = await collect_instances(self.store, where, limit=None)
        return [row.id for row in page.instances]

    # ── looking and asking ────────────────────────────────────────────────────────────────────────────

    async def look(self, instance_id: str, *, zone: tzinfo | None) -> Instance:
        """An instance as it stands. Raises ``INSTANCE_NOT_FOUND``."""
        with of_this_cluster():
            whole = await whole_story(self.store, instance_id, rows_max=None)
        task = next((app.registered.get(whole.instance.ref) for app in self.apps), None)
        decode = None if task is None else task.decoder
        return look_at(whole, decode=decode, raised=self._script.raised.get(instance_id), zone=zone)

    async def look_at_all(self, ref: TaskRef | None, *, zone: tzinfo | None) -> list[Instance]:
        """Every instance, or those of a task, in the order of their creation."""
        where = InstanceFilter() if ref is None else InstanceFilter(namespace=ref.namespace, task=ref.name)
        rows = (await collect_instances(self.store, where, limit=None)).instances
        rows.sort(key=lambda row: (row.created_us, row.id))
        return [await self.look(row.id, zone=zone) for row in rows]

    async def replay(self, instance_id: str, *, latest: bool, force: bool) -> None:
        """A new generation of an instance. Raises as ``control.replay``."""
        with of_this_cluster():
            answers = await replay(
                self.store, [instance_id], asker=self._asker, reason="test", latest=latest, force=force
            )
            require_ok(answers[0])

    async def set_flag(self, ref: TaskRef, verb: FlagVerb) -> None:
        """Pause or resume a task. Raises as ``set_task_flag``."""
        await self.catch_up()
        await set_task_flag(self.store, ref, verb=verb, asker=self._asker)
