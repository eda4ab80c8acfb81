"""Writes down which workers this node has, so that people can list them; nothing is decided by it."""

from __future__ import annotations

from collections import Counter

import msgspec

from ostinato.core.failure.text import cut_text
from ostinato.core.instants import DAY, HOUR, SECOND
from ostinato.errors import OstinatoError
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.sessions import WorkerSession
from ostinato.store.batches import WorkerRow
from ostinato.wire.messages import Hello

#: Changes gather for this long.
GATHER_US = SECOND
#: A worker that is gone stays in the lists for this long.
GONE_KEPT_US = DAY
#: Where there are no workers: between two looks for rows that are too old.
AGEING_US = HOUR

#: What a worker says of itself is kept up to these bounds.
_TASKS_MAX = 10_000
_PROBLEMS_MAX = 100
_PROBLEM_BYTES_MAX = 2_000
_WORD_BYTES_MAX = 500


class RegistryLoop(Loop):
    """Records connected workers when they change and at regular times, and those that have left once."""

    name = "registry"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._time = parts.time
        self._ownership = parts.ownership
        self._sessions = parts.sessions
        self._rows_boot_us: int | None = None
        self._aged_boot_us: int | None = None
        #: What the database may show of this node, with the session that it was made of.
        self._known: dict[str, tuple[WorkerSession, WorkerRow]] = {}

    async def run_once(self) -> int | None:
        """Record all workers once; at most once in a second."""
        boot_us = self._clock.boot_us()
        if self._rows_boot_us is not None and boot_us - self._rows_boot_us < GATHER_US:
            return self._rows_boot_us + GATHER_US
        if self._sessions.by_id or self._known:
            await self._record()
            # Only now: what failed is tried again, with the loop's own back-off.
            self._rows_boot_us = boot_us
        elif self._aged_boot_us is None or boot_us - self._aged_boot_us >= AGEING_US:
            await self._record()
        interval_us = self._config.backlog_us
        return self._clock.boot_us() + (interval_us if self._known else max(interval_us, AGEING_US))

    async def leave(self) -> None:
        """At a clean stop: this node's workers are gone. What the database does not take is only reported."""
        try:
            if self._known:
                await self._record(is_stopping=True)
        except OstinatoError as error:
            self._report(error)

    async def _record(self, *, is_stopping: bool = False) -> None:
        now_us = self._time.now_us()
        counts = Counter(attempt.worker_id for attempt in self._ownership.memory.running.values())
        sessions = {} if is_stopping else dict(self._sessions.by_id)
        for worker_id, session in sessions.items():
            self._known[worker_id] = (session, self._base_row(session, now_us=now_us))
        rows: list[WorkerRow] = []
        for worker_id, (_, base) in self._known.items():
            listed = sessions.get(worker_id)
            if listed is None:
                rows.append(msgspec.structs.replace(base, state="gone", seen_us=now_us))
                continue
            rows.append(
                msgspec.structs.replace(
                    base,
                    state="draining" if listed.is_draining else "connected",
                    running_count=counts[worker_id],
                    seen_us=now_us,
                )
            )
        await self._store.record_workers(rows, gone_before_us=now_us - GONE_KEPT_US)
        self._aged_boot_us = self._clock.boot_us()
        self._known = {worker_id: known for worker_id, known in self._known.items() if worker_id in sessions}

    def _base_row(self, session: WorkerSession, *, now_us: int) -> WorkerRow:
        """What does not change while a stream lasts, made once."""
        known = self._known.get(session.worker_id)
        if known is not None and known[0] is session and known[1].node_id == self._ownership.node_id:
            return known[1]
        connected_us = now_us - (self._clock.boot_us() - session.connected_boot_us)
        return _row_of(session.hello, node_id=self._ownership.node_id, connected_us=connected_us)


def _row_of(hello: Hello, *, node_id: str, connected_us: int) -> WorkerRow:
    """Of a greeting that may come from anyone: safe to store, and bounded."""
    return WorkerRow(
        worker_id=hello.worker_id,
        worker_name=hello.worker_name,
        node_id=node_id,
        state="connected",
        labels={_word(name): _word(value) for name, value in sorted(hello.labels.items())},
        capacity={_word(pool): count for pool, count in sorted(hello.capacity.items())},
        tasks=[_word(str(ref)) for ref in sorted(hello.tasks)[:_TASKS_MAX]],
        executors=[_word(kind) for kind in sorted(hello.executors)],
        problems=[cut_text(problem, _PROBLEM_BYTES_MAX) for problem in hello.problems[:_PROBLEMS_MAX]],
        protocol=hello.protocol,
        connected_us=connected_us,
    )


def _word(text: str) -> str:
    return cut_text(text, _WORD_BYTES_MAX)
