"""What people and programs ask for: read, decided, answered in the same transaction."""

from __future__ import annotations

from ostinato.core.changes import Request, TriggerRow
from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.core.instants import MILLISECOND
from ostinato.core.model import Instance
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.request import (
    DrainBody,
    cancel,
    delete,
    drain,
    read_body,
    refuse_unknown,
    replay,
    set_flags,
)
from ostinato.core.states import State
from ostinato.scheduler.dispatch_loop import DispatchLoop
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.registry_loop import RegistryLoop
from ostinato.scheduler.trigger_loop import TriggerLoop

#: A request whose row had changed meanwhile is looked at again after this.
AGAIN_US = 10 * MILLISECOND
_NO_TASK = TaskRef("", "")
_FLAG_KINDS = frozenset({"pause", "resume", "disable", "enable"})


class RequestLoop(Loop):
    """Carries out requests in the order they were made, at most one per instance and task a round."""

    name = "request"

    def __init__(
        self, parts: NodeParts, *, triggers: TriggerLoop, dispatch: DispatchLoop, registry: RegistryLoop
    ) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._definitions = parts.definitions
        self._sessions = parts.sessions
        self._held = parts.held
        self._triggers = triggers
        self._dispatch = dispatch
        self._registry = registry

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
        with self._definitions.changing(changed):
            outcome = await self._committer.commit(effects)
        for ref in changed:
            self._held.stale(ref)
        self._triggers.wake()
        return self._clock.boot_us() + (AGAIN_US if outcome.dropped else 0)

    async def _decide(self, requests: list[Request], *, into: Effects) -> list[TaskRef]:
        now_us = self._time.now_us()
        ids = [request.instance_id for request in requests if request.instance_id]
        instances = await self._store.get_instances(ids) if ids else {}
        again = [
            instances[request.instance_id]
            for request in requests
            if request.kind == "replay" and request.instance_id in instances
        ]
        tasks, pinned = await self._of_replays(again)
        changed: list[TaskRef] = []
        for request in requests:
            instance = instances.get(request.instance_id)
            if request.kind == "cancel":
                cancel(request, instance, now_us=now_us, into=into)
            elif request.kind == "replay":
                key = (instance.ref, instance.task_version) if instance is not None else (_NO_TASK, 0)
                replay(
                    request,
                    instance,
                    task=tasks.get(key[0]),
                    pinned=pinned.get(key),
                    now_us=now_us,
                    into=into,
                )
            elif request.kind == "delete":
                changed.append(await self._delete(request, now_us=now_us, into=into))
            elif request.kind == "drain":
                self._drain(request, now_us=now_us, into=into)
            elif request.kind in _FLAG_KINDS:
                changed.append(await self._set_flags(request, now_us=now_us, into=into))
            else:
                refuse_unknown(request, now_us=now_us, into=into)
        return changed

    async def _of_replays(
        self, instances: list[Instance]
    ) -> tuple[dict[TaskRef, TaskRow], dict[tuple[TaskRef, int], TaskDefinition]]:
        """Tasks and pinned versions as they are now: a missing one is answered for good."""
        if not instances:
            return {}, {}
        pinned = {(instance.ref, instance.task_version): None for instance in instances}
        tasks = await self._store.get_tasks(list({ref: None for ref, _ in pinned}))
        return tasks, await self._store.load_definitions(list(pinned))

    async def _set_flags(self, request: Request, *, now_us: int, into: Effects) -> TaskRef:
        ref = TaskRef(request.namespace, request.task)
        task = (await self._store.get_tasks([ref])).get(ref)
        triggers: list[TriggerRow] = []
        waiting: list[Instance] = []
        if request.kind in ("resume", "enable"):
            triggers = await self._store.triggers_of(ref)
        elif request.kind == "disable":
            waiting = await self._waiting(ref)
        set_flags(
            request,
            task,
            triggers=triggers,
            waiting=waiting,
            more_waiting=len(waiting) >= self._config.batch_count,
            now_us=now_us,
            into=into,
        )
        return ref

    async def _waiting(self, ref: TaskRef) -> list[Instance]:
        """Instances of the task that wait, oldest first, as many as one batch takes."""
        # Those that run may stand before all that wait.
        running_count = sum(attempt.ref == ref for attempt in self._ownership.memory.running.values())
        batch_count = self._config.batch_count
        live = await self._store.live_instances([ref], limit=batch_count + running_count)
        return [row for row in live.get(ref, []) if row.state is not State.RUNNING][:batch_count]

    async def _delete(self, request: Request, *, now_us: int, into: Effects) -> TaskRef:
        ref = TaskRef(request.namespace, request.task)
        task = (await self._store.get_tasks([ref])).get(ref)
        waiting = await self._waiting(ref) if task is not None else []
        delete(request, task, waiting=waiting, now_us=now_us, into=into)
        return ref

    def _drain(self, request: Request, *, now_us: int, into: Effects) -> None:
        """Told before the answer is on record: told twice is fine, not at all would not be."""
        body = read_body(request, DrainBody, now_us=now_us, into=into)
        if body is None:
            return
        reason = body.reason or f"asked for by {request.by or 'a client'}"
        session = self._sessions.drain(body.worker_id, reason)
        if session is not None:
            self._held.workers_changed()
            self._dispatch.wake()
            self._registry.wake()
        worker_name = session.worker_name if session is not None else None
        drain(request, body.worker_id, worker_name=worker_name, now_us=now_us, into=into)


def _one_per_subject(requests: list[Request]) -> list[Request]:
    """The first request about each instance or task: a batch holds one move per instance.

    A disable or delete moves instances of its whole task, so it goes alone. A drain moves none.
    """
    chosen: dict[tuple[str, str, str], Request] = {}
    for request in requests:
        if request.kind in ("disable", "delete"):
            return list(chosen.values()) or [request]
        subject = request.id if request.kind == "drain" else request.instance_id
        chosen.setdefault((request.namespace, request.task, subject), request)
    return list(chosen.values())
