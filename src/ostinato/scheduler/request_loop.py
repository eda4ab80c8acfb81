"""What people and programs ask for: read, decided, answered in the same transaction."""

from __future__ import annotations

from ostinato.core.changes import Request, TriggerRow
from ostinato.core.definition import TaskRef
from ostinato.core.instants import MILLISECOND
from ostinato.core.model import Instance
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.request import cancel, replay, set_flags
from ostinato.core.states import LIVE_STATES, State
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.trigger_loop import TriggerLoop

#: A request whose row had changed meanwhile is looked at again after this.
AGAIN_US = 10 * MILLISECOND


class RequestLoop(Loop):
    """Carries out requests in the order they were made, at most one per instance and task a round."""

    name = "request"

    def __init__(self, parts: NodeParts, *, triggers: TriggerLoop) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._definitions = parts.definitions
        self._triggers = triggers

    async def run_once(self) -> int | None:
        """Answer what is open."""
        partitions = self._ownership.owned()
        if not partitions:
            return None
        requests = await self._store.find_requests(partitions, limit=self._config.batch_count)
        if not requests:
            return None
        effects = Effects()
        changed = await self._decide(_one_per_subject(requests), into=effects)
        outcome = await self._committer.commit(effects)
        for ref in changed:
            self._definitions.forget(ref)
        self._triggers.wake()
        return self._clock.boot_us() + (AGAIN_US if outcome.dropped else 0)

    async def _decide(self, requests: list[Request], *, into: Effects) -> list[TaskRef]:
        now_us = self._time.now_us()
        ids = [request.instance_id for request in requests if request.instance_id]
        instances = await self._store.get_instances(ids) if ids else {}
        await self._definitions.load(instances.values())
        changed: list[TaskRef] = []
        for request in requests:
            instance = instances.get(request.instance_id)
            if request.kind == "cancel":
                cancel(request, instance, now_us=now_us, into=into)
            elif request.kind == "replay":
                task = self._definitions.task(instance.ref) if instance is not None else None
                pinned = (
                    self._definitions.pinned(instance.ref, instance.task_version)
                    if instance is not None
                    else None
                )
                replay(request, instance, task=task, pinned=pinned, now_us=now_us, into=into)
            else:
                changed.append(await self._set_flags(request, now_us=now_us, into=into))
        return changed

    async def _set_flags(self, request: Request, *, now_us: int, into: Effects) -> TaskRef:
        ref = TaskRef(request.namespace, request.task)
        task = (await self._store.get_tasks([ref])).get(ref)
        triggers: list[TriggerRow] = []
        waiting: list[Instance] = []
        limit = self._config.batch_count
        more = False
        if request.kind in ("resume", "enable"):
            triggers = await self._store.triggers_of(ref)
        elif request.kind == "disable":
            live = (await self._store.live_instances([ref], limit=limit)).get(ref, [])
            waiting = [row for row in live if row.state in LIVE_STATES and row.state is not State.RUNNING]
            more = len(live) == limit and bool(waiting)
        set_flags(
            request,
            task,
            triggers=triggers,
            waiting=waiting,
            more_waiting=more,
            now_us=now_us,
            into=into,
        )
        return ref


def _one_per_subject(requests: list[Request]) -> list[Request]:
    """The first request about each instance or task: a batch holds one move per instance.

    A disable moves instances of its whole task, so it goes alone.
    """
    chosen: dict[tuple[str, str, str], Request] = {}
    for request in requests:
        if request.kind == "disable":
            return list(chosen.values()) or [request]
        chosen.setdefault((request.namespace, request.task, request.instance_id), request)
    return list(chosen.values())
