"""What clients of a run do: submit, repeat, cancel, replay, pause, disable, edit and delete."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from ostinato.control.delete import delete_task
from ostinato.control.pause import FlagVerb
from ostinato.control.replay import replay
from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.ids import new_id
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import OstinatoError, UnavailableError
from ostinato.simulation.behaviour import Profile
from ostinato.simulation.client_host import ClientHost, StoreFor
from ostinato.simulation.history import History, SubmissionAnswered
from ostinato.simulation.machine import Machine
from ostinato.store.batches import RequestAnswer

#: What a client does next, each as often as its number says.
_ACTS = {
    "submit": 60,
    "submit_many": 6,
    "repeat": 8,
    "cancel": 14,
    "replay": 8,
    "pause": 4,
    "resume": 5,
    "disable": 2,
    "enable": 5,
    "edit": 5,
    "delete": 1,
    "apply": 3,
}
_FLAGS: dict[str, FlagVerb] = {"pause": "pause", "resume": "resume", "disable": "disable", "enable": "enable"}
_RELEASES: tuple[FlagVerb, ...] = ("resume", "enable")
_RECENT_COUNT = 40
#: A client repeats what it got no clear answer to so often.
_REPEATS = 3


class Client(ClientHost):
    """A client that acts by chance, in its own process."""

    def __init__(
        self,
        machine: Machine,
        *,
        history: History,
        store_for: StoreFor,
        profiles: Sequence[Profile],
        restores_triggers: bool = False,
    ) -> None:
        """`restores_triggers`: an edit may bring back what an earlier one has taken away."""
        super().__init__(machine, history=history, store_for=store_for)
        self._rng = machine.loop.random_for("workload", machine.name)
        self._clock = machine.clock
        self._definitions = {profile.name: profile.definition for profile in profiles}
        self._first = dict(self._definitions) if restores_triggers else self._definitions
        self._recent: deque[str] = deque(maxlen=_RECENT_COUNT)
        self._keyed: deque[SubmitRequest] = deque(maxlen=_RECENT_COUNT)
        self._key_count = 0
        self._acting: asyncio.Task[None] | None = None
        self._acts: dict[asyncio.Task[None], None] = {}

    def begin(self, *, act_us: int) -> None:
        """Act from now on, until `end`."""
        self._acting = self.process.spawn(self._run(act_us), name="workload")

    def end(self) -> None:
        """Begin nothing more; what is under way goes on."""
        if self._acting is not None:
            self.process.call_soon(self._acting.cancel)

    async def _run(self, act_us: int) -> None:
        """Act again and again, about every `act_us`; several acts may be under way."""
        names, weights = list(_ACTS), list(_ACTS.values())
        while True:
            wait_us = int(self._rng.expovariate(1.0) * act_us)
            await self._clock.sleep_until_us(self._clock.boot_us() + wait_us)
            act = self.process.spawn(self._act(self._rng.choices(names, weights)[0]), name="act")
            self._acts[act] = None
            act.add_done_callback(self._acts.pop)

    async def apply_all(self) -> None:
        """Put every task in force; again until it is."""
        await self._until_applied(list(self._definitions.values()))

    async def end_triggers(self) -> None:
        """Let no task fire any more."""
        still = [msgspec.structs.replace(row, triggers=()) for row in self._definitions.values()]
        await self._until_applied(still)

    async def _until_applied(self, definitions: list[TaskDefinition]) -> None:
        while True:
            try:
                await self.open()
                await self.apply(definitions)
            except UnavailableError:
                await self._clock.sleep_until_us(self._clock.boot_us() + SECOND // 5)
            else:
                return

    async def acts_have_ended(self) -> None:
        """Wait for what was under way when `end` was called."""
        if self._acts:
            await asyncio.wait(list(self._acts))

    async def settle(self) -> None:
        """Let everything go on that was paused or disabled, so that it can end."""
        for name in self._definitions:
            for verb in _RELEASES:
                await self._until_ok(TaskRef("default", name), verb)

    async def _until_ok(self, ref: TaskRef, verb: FlagVerb) -> None:
        while await self.set_flag(ref, verb=verb) not in ("OK", "TASK_NOT_FOUND"):
            await self._clock.sleep_until_us(self._clock.boot_us() + SECOND // 5)

    # ── acts ──────────────────────────────────────────────────────────────────────────────────────────

    async def _act(self, name: str) -> None:
        """One act. What it meets is the world's; a fault of ours ends the run."""
        rng = self._rng
        task = rng.choice(list(self._definitions))
        try:
            if name == "submit":
                await self._submit([self._request(task)])
            elif name == "submit_many":
                await self._submit([self._request(task) for _ in range(rng.randrange(2, 30))])
            elif name == "repeat" and self._keyed:
                await self._submit([rng.choice(list(self._keyed))])
            elif name == "cancel" and self._recent:
                identifier = rng.choice(list(self._recent))
                await self.cancel(identifier)
            elif name == "replay" and self._recent:
                identifier = rng.choice(list(self._recent))
                await self._replay(identifier, latest=rng.random() < 0.5, force=rng.random() < 0.5)
            elif name in _FLAGS:
                await self.set_flag(TaskRef("default", task), verb=_FLAGS[name])
            elif name == "edit":
                self._definitions[task] = self._edited(self._definitions[task])
                await self._apply_one(task)
            elif name == "apply":
                await self._apply_one(task)
            elif name == "delete":
                ref = TaskRef("default", task)
                await self._asked("delete", "", self._delete(ref))
                await self._apply_one(task)
        except OstinatoError as error:
            if error.code in ("INTERNAL", "INVARIANT"):
                raise

    def _request(self, task: str) -> SubmitRequest:
        rng = self._rng
        key = ""
        if rng.random() < 0.3:
            self._key_count += 1
            # Of few, so that two clients meet over the same one.
            key = f"key-{rng.randrange(20)}" if rng.random() < 0.5 else f"{self.name}-{self._key_count}"
        request = SubmitRequest(
            task=task,
            id=new_id(self._clock.wall_us(), rng),
            key=key,
            delay_us=rng.choice(
                (None, None, None, rng.randrange(10) * SECOND, rng.randrange(900) * MILLISECOND)
            ),
            priority=rng.choice((None, None, rng.randrange(10))),
        )
        if key:
            self._keyed.append(request)
        return request

    async def _submit(self, requests: list[SubmitRequest]) -> None:
        """Submit until there is an answer, or patience ends; then it stays open what was written."""
        for attempt in range(_REPEATS):
            try:
                receipts = await self._gateway.submit(requests)
            except OstinatoError as error:
                for request in requests:
                    self._answered(request, request.id, error_code=error.code)
                if not error.code.startswith("DATABASE_") or attempt == _REPEATS - 1:
                    return
                await self._clock.sleep_until_us(self._clock.boot_us() + 50 * MILLISECOND)
            else:
                for request, receipt in zip(requests, receipts, strict=True):
                    self._recent.append(receipt.instance_id)
                    self._answered(request, receipt.instance_id)
                return

    def _answered(self, request: SubmitRequest, instance_id: str, *, error_code: str = "") -> None:
        self._history.add(
            SubmissionAnswered(
                at_us=self._history.now_us(),
                process=self.process.name,
                instance_id=instance_id,
                task=f"{request.namespace}/{request.task}",
                key=request.key,
                error_code=error_code,
            )
        )

    async def _replay(self, instance_id: str, *, latest: bool, force: bool) -> None:
        call = replay(self._store, [instance_id], asker=self.asker, latest=latest, force=force)
        await self._asked("replay", instance_id, call)

    async def _delete(self, ref: TaskRef) -> list[RequestAnswer]:
        return [await delete_task(self._store, ref, asker=self.asker)]

    def _edited(self, definition: TaskDefinition) -> TaskDefinition:
        """The same task with something else in it."""
        rng = self._rng
        retry = msgspec.structs.replace(definition.retry, max_retry=rng.randrange(5))
        if rng.random() < 0.5:
            return msgspec.structs.replace(definition, retry=retry, priority=rng.randrange(10))
        known = self._first[definition.name].triggers
        triggers = tuple(rng.sample(known, rng.randrange(len(known) + 1)))
        return msgspec.structs.replace(
            definition, description=f"edited {rng.randrange(9)}", triggers=triggers
        )

    async def _apply_one(self, task: str) -> None:
        await self.apply([self._definitions[task]])
