"""What clients of a run do: submit, repeat, cancel, replay, pause, disable, edit and delete, as the seed says.

They use the verbs of ``control`` on a store of their own, as the SDK does with a database URL.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from random import Random

import msgspec

from ostinato.clock import Clock
from ostinato.control.apply import apply
from ostinato.control.cancel import cancel
from ostinato.control.delete import delete_task
from ostinato.control.pause import FlagVerb, set_task_flag
from ostinato.control.replay import replay
from ostinato.control.requests import Asker
from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.ids import new_id
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import OstinatoError
from ostinato.simulation.behaviour import Profile
from ostinato.simulation.history import History, RequestAnswered, SubmissionAnswered
from ostinato.store.batches import RequestAnswer
from ostinato.store.protocol import Store

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
_RECENT_COUNT = 40
#: A client repeats what it got no clear answer to so often.
_REPEATS = 3


class Client:
    """One client: a process of its own, with a store and a clock."""

    def __init__(
        self,
        name: str,
        *,
        store: Store,
        clock: Clock,
        rng: Random,
        history: History,
        profiles: Sequence[Profile],
    ) -> None:
        self.name = name
        self._store = store
        self._clock = clock
        self._rng = rng
        self._history = history
        self._definitions = {profile.name: profile.definition for profile in profiles}
        self._recent: deque[str] = deque(maxlen=_RECENT_COUNT)
        self._keyed: deque[SubmitRequest] = deque(maxlen=_RECENT_COUNT)
        self._asker = Asker(clock=clock, rng=rng, by=name)
        self._key_count = 0

    async def run(self, *, act_us: int) -> None:
        """Act again and again, about every `act_us`; several acts may be under way."""
        acts: set[asyncio.Task[None]] = set()
        names, weights = list(_ACTS), list(_ACTS.values())
        while True:
            wait_us = int(self._rng.expovariate(1.0) * act_us)
            await self._clock.sleep_until_us(self._clock.boot_us() + wait_us)
            act = asyncio.create_task(self._act(self._rng.choices(names, weights)[0]))
            acts.add(act)
            act.add_done_callback(acts.discard)

    async def apply_all(self) -> None:
        """Put every task in force; again until it is."""
        await self._until_done(self._apply_once)

    async def settle(self) -> None:
        """Let everything go on that was paused or disabled, so that it can end."""
        for name in self._definitions:
            for verb in ("resume", "enable"):
                await self._until_done(lambda name=name, verb=verb: self._flag(name, verb))

    async def _until_done(self, work: object) -> None:
        while True:
            try:
                await work()  # type: ignore[operator]  # a coroutine function
            except OstinatoError as error:
                if error.code == "TASK_NOT_FOUND":
                    return
                await self._clock.sleep_until_us(self._clock.boot_us() + SECOND // 5)
            else:
                return

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
                self._told(await cancel(self._store, [identifier], asker=self._asker), "cancel")
            elif name == "replay" and self._recent:
                identifier = rng.choice(list(self._recent))
                latest, force = rng.random() < 0.5, rng.random() < 0.5
                answers = await replay(
                    self._store, [identifier], asker=self._asker, latest=latest, force=force
                )
                self._told(answers, "replay")
            elif name in _FLAGS:
                await self._flag(task, _FLAGS[name])
            elif name == "edit":
                self._definitions[task] = self._edited(self._definitions[task])
                await self._apply_one(task)
            elif name == "apply":
                await self._apply_one(task)
            elif name == "delete":
                ref = TaskRef("default", task)
                self._told([await delete_task(self._store, ref, asker=self._asker)], "delete")
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
                receipts = await submit(
                    self._store, requests, now_us=await self._store.now_us(), rng=self._rng
                )
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
                process=self.name,
                instance_id=instance_id,
                task=request.task,
                key=request.key,
                error_code=error_code,
            )
        )

    async def _flag(self, task: str, verb: FlagVerb) -> None:
        answer = await set_task_flag(self._store, TaskRef("default", task), verb=verb, asker=self._asker)
        self._told([answer], verb)

    def _told(self, answers: Sequence[RequestAnswer], kind: str) -> None:
        for answer in answers:
            if answer.request_id:
                self._history.add(
                    RequestAnswered(
                        at_us=self._history.now_us(),
                        process=self.name,
                        request_id=answer.request_id,
                        kind=kind,
                        instance_id=answer.instance_id,
                        answer_code=answer.code,
                    )
                )

    def _edited(self, definition: TaskDefinition) -> TaskDefinition:
        """The same task with something else in it."""
        rng = self._rng
        retry = msgspec.structs.replace(definition.retry, max_retry=rng.randrange(5))
        if rng.random() < 0.5:
            return msgspec.structs.replace(definition, retry=retry, priority=rng.randrange(10))
        triggers = tuple(rng.sample(definition.triggers, rng.randrange(len(definition.triggers) + 1)))
        return msgspec.structs.replace(
            definition, description=f"edited {rng.randrange(9)}", triggers=triggers
        )

    async def _apply_one(self, task: str) -> None:
        await apply(self._store, [self._definitions[task]], now_us=await self._store.now_us())

    async def _apply_once(self) -> None:
        await apply(self._store, list(self._definitions.values()), now_us=await self._store.now_us())
