"""A client of the simulated cluster: asks by the SDK's gateway and control's verbs, over a store of its own.

Every call is told to the history with the answer that the client got; one that broke off without an answer
is told with the code of its error, and leaves open what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

import msgspec

from ostinato.clock import Clock
from ostinato.control.cancel import cancel
from ostinato.control.pause import FlagVerb, set_task_flag
from ostinato.control.queries import get_instances
from ostinato.control.replay import replay
from ostinato.control.requests import Asker
from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.ids import new_id
from ostinato.core.model import Instance
from ostinato.errors import OstinatoError
from ostinato.sdk.gateway.address import SaidUrl
from ostinato.sdk.gateway.database import DatabaseGateway
from ostinato.simulation.history import History, RequestAnswered, SubmissionAnswered
from ostinato.simulation.machine import Machine
from ostinato.simulation.process import Process
from ostinato.store.batches import RequestAnswer
from ostinato.store.protocol import Store

Value = TypeVar("Value")
#: The store of a process, not open yet.
StoreFor = Callable[[Process, Clock], Store]
_UNNAMED = SaidUrl("", "")


class ClientHost:
    """One client process on a machine of its own; `start` it before it is asked for anything."""

    def __init__(self, machine: Machine, *, history: History, store_for: StoreFor) -> None:
        self.machine = machine
        self.name = machine.name
        self._history = history
        self._store_for = store_for
        self._rng = machine.loop.random_for("client", machine.name)
        self.process = machine.process("client")
        self._store = store_for(self.process, machine.clock)
        self._gateway = self._new_gateway()

    def _new_gateway(self) -> DatabaseGateway:
        clock = self.machine.clock
        return DatabaseGateway(self._store, _UNNAMED, clock=clock, rng=self._rng, by=self.name)

    @property
    def asker(self) -> Asker:
        """Who asks, and by which clock."""
        return Asker(clock=self.machine.clock, rng=self._rng, by=self.name)

    def restart(self) -> None:
        """Kill the process, with all that it waits for, and start another."""
        self.process.crash()
        self.process = self.machine.process("client")
        self._store = self._store_for(self.process, self.machine.clock)
        self._gateway = self._new_gateway()

    def do(self, work: Coroutine[object, object, Value]) -> None:
        """Have the client do something by itself, beside whatever else it does."""
        self.process.spawn(work, name="client")

    async def open(self) -> None:
        """Connect. Raises what the store raises."""
        await self._store.open()

    async def apply(self, definitions: Sequence[TaskDefinition]) -> None:
        """Store definitions. Raises what ``control.apply`` and the store raise."""
        await self._gateway.apply(definitions)

    async def submit(self, request: SubmitRequest) -> str:
        """Submit; the id of the instance, empty if the answer was an error.

        A request without an id is given one, so that what became of it can be found whatever the answer was.
        """
        if not request.id:
            identity = new_id(self.machine.clock.wall_us(), self._rng)
            request = msgspec.structs.replace(request, id=identity)
        instance_id, error_code = "", ""
        try:
            (receipt,) = await self._gateway.submit([request])
            instance_id = receipt.instance_id
        except OstinatoError as error:
            error_code = error.code
        self._history.add(
            SubmissionAnswered(
                at_us=self.machine.loop.true_us,
                process=self.process.name,
                instance_id=instance_id or request.id,
                task=f"{request.namespace}/{request.task}",
                key=request.key,
                error_code=error_code,
            )
        )
        return instance_id

    async def cancel(self, instance_id: str, *, reason: str = "") -> str:
        """Ask for the end of an instance; the code of the answer, or of the error."""
        call = cancel(self._store, [instance_id], asker=self.asker, reason=reason)
        return await self._asked("cancel", instance_id, call)

    async def replay(self, instance_id: str, *, force: bool = False) -> str:
        """Ask for a new generation of an instance; as `cancel`."""
        call = replay(self._store, [instance_id], asker=self.asker, force=force)
        return await self._asked("replay", instance_id, call)

    async def set_flag(self, ref: TaskRef, *, verb: FlagVerb) -> str:
        """Pause, resume, disable or enable a task; as `cancel`."""

        async def ask() -> list[RequestAnswer]:
            return [await set_task_flag(self._store, ref, verb=verb, asker=self.asker)]

        return await self._asked(verb, "", ask())

    async def get(self, instance_ids: Sequence[str]) -> list[Instance]:
        """Whole rows. Raises ``INSTANCE_NOT_FOUND`` and what the store raises."""
        return await get_instances(self._store, instance_ids)

    async def _asked(
        self, kind: str, instance_id: str, call: Coroutine[object, object, list[RequestAnswer]]
    ) -> str:
        request_id = ""
        try:
            (answer,) = await call
            request_id, code = answer.request_id, answer.code
        except OstinatoError as error:
            code = error.code
        self._history.add(
            RequestAnswered(
                at_us=self.machine.loop.true_us,
                process=self.process.name,
                request_id=request_id,
                kind=kind,
                instance_id=instance_id,
                answer_code=code,
            )
        )
        return code
