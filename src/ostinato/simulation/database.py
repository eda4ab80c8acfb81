"""``DatabaseServer``: one database for all processes of a run: sessions, locks, commits.

A call is carried out on the server at the moment at which it arrives, and answered later. A transaction
that writes holds its locks from its first statement to its COMMIT, with a way back and forth in between. Its
changes happen at the COMMIT, all at one instant; to everybody else that is the same, as what it has locked
cannot have changed meanwhile. What is evaluated earlier (proofs) is kept.

    process ──► Wire ──► Session: statement ─► locks ─► answer ─► … ─► COMMIT ─► changes ─► answer
                                     │ blocked: until granted, timed out, deadlocked or ended
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from random import Random
from typing import Protocol, TypeVar

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import OstinatoError
from ostinato.simulation.database_clock import DatabaseClock
from ostinato.simulation.database_faults import DatabaseFaults
from ostinato.simulation.database_locks import LockTable, LockWait, Want
from ostinato.simulation.database_sessions import (
    BLOCKED,
    Action,
    Answer,
    DeadlineOverError,
    Failed,
    Request,
    Session,
    StatementFailedError,
    lost,
)
from ostinato.simulation.database_store import SimulatedStore
from ostinato.simulation.database_tables import ObservedTables
from ostinato.simulation.database_wire import Wire
from ostinato.simulation.history import History
from ostinato.store.batches import Proof
from ostinato.store.memory import MemoryStore
from ostinato.store.server.database import Role
from ostinato.store.server.faults import Fault

#: As the adapters of the real servers have it: silence amid a transaction, and waiting for one lock.
IDLE_US: dict[Role, int] = {"owner": 2 * SECOND, "renewal": 2 * SECOND, "people": 4 * SECOND}
LOCK_US: dict[Role, int] = {"owner": 2500 * MILLISECOND, "renewal": SECOND, "people": 4 * SECOND}
#: How often a blocked statement looks whether who blocks it is silent for too long.
_LOOK_US = 250 * MILLISECOND

Result = TypeVar("Result")


class DatabaseClient(Protocol):
    """What the database knows of a process."""

    @property
    def name(self) -> str: ...

    def on_crash(self, callback: Callable[[], None]) -> None: ...


class DatabaseServer(DatabaseFaults):
    """The rows, the sessions of everybody, and what is wrong at the moment (``DatabaseFaults``)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        history: History,
        rng: Random,
        partition_count: int = 64,
        *,
        has_session_locks: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Made outside of every process: what the server does goes on while they stand still.

        `has_session_locks` false: a proxy pools transactions. `clock`: the database's; None: its own.
        """
        super().__init__()
        self.loop = loop
        self.rng = rng
        self.now_us = history.now_us
        self.clock = DatabaseClock(history.now_us)
        self.has_session_locks = has_session_locks
        self.tables = ObservedTables(partition_count, history)
        self.memory = MemoryStore(clock or self.clock, tables=self.tables)
        self.locks = LockTable(readers_overtake=rng.random() < 0.5)
        #: Who holds the session lock of which node.
        self.node_locks: dict[str, Session] = {}
        self.sessions: dict[Session, None] = {}
        self.stores: list[SimulatedStore] = []
        self._wires: dict[str, Wire] = {}
        self._context = copy_context()

    def store_for(self, process: DatabaseClient, clock: Clock) -> SimulatedStore:
        """The store of one process, with connections of its own; `clock` is that of the process."""
        store = SimulatedStore(self, self.wire_of(process.name), clock)
        self.stores.append(store)
        process.on_crash(store.crash)
        return store

    def wire_of(self, name: str) -> Wire:
        """The way between a process and the database; the same for all that ever had this name."""
        wire = self._wires.get(name)
        if wire is None:
            wire = self._wires[name] = Wire(self, name)
        return wire

    def announce(self, teller: SimulatedStore) -> None:
        """Tell every other process that listens that there is something to find; each hint may be lost."""
        if not self.is_accepting or self.is_stalled or teller.wire.is_cut:
            return
        for store in self.stores:
            if store is teller or not store.is_listening or store.wire.is_cut:
                continue
            if self.lost_hint_share and self.rng.random() < self.lost_hint_share:
                continue
            late_us = self.rng.randrange(*self.hint_delay_us)
            self.later(teller.wire.way_us() + store.wire.way_us() + late_us, store.hear)

    def later(self, delay_us: int, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call after `delay_us`, whatever the processes do."""
        return self.loop.call_later(delay_us / SECOND, callback, *args, context=self._context)

    # ── statements ───────────────────────────────────────────────────────────────────────────────────

    async def ask(self, session: Session, action: Action, *, ends_us: int) -> Answer:
        """At the client: have `action` carried out on the server, at one instant, and return its answer.

        Raises what it raises, ``StatementFailedError``, and ``DeadlineOverError`` at `ends_us`.
        """
        # Who was frozen until after its deadline may still send before it looks at the time.
        if self.now_us() >= ends_us and self.rng.random() < 0.5:
            raise DeadlineOverError
        request = Request(self, session, action, ends_us)
        session.wire.carry(request)
        answer = await request.answer
        if type(answer) is Failed:
            raise answer.error
        return answer

    def arrive(self, request: Request) -> None:
        """A statement has come in."""
        session = request.session
        if self.is_stalled:
            self.after_stall(self.arrive, request)
            request.watch_deadline()
        elif session.is_ended or self._has_idled_out(session):
            session.wire.bring(request, lost("the server has ended the session"))
        else:
            session.idle_since_us = None
            session.request = request
            slow_us = self.draw_slowness()
            if slow_us:
                before_us = self.rng.randrange(slow_us)
                request.watch_deadline()
                self.later(before_us, self._carry_out, request, slow_us - before_us)
            else:
                self._carry_out(request, 0)

    def _carry_out(self, request: Request, rest_us: int) -> None:
        if self.is_stalled:
            self.after_stall(self._carry_out, request, rest_us)
        elif not request.session.is_ended:
            self._answer(request, self._result_of(request.session, request.action), rest_us)

    def _result_of(self, session: Session, action: Action) -> Answer:
        try:
            return action(session)
        except (StatementFailedError, OstinatoError) as error:
            self.end_transaction(session)
            return Failed(error)

    def _answer(self, request: Request, answer: Answer, rest_us: int = 0) -> None:
        """Send `answer` once the statement has run for `rest_us` more."""
        session = request.session
        if session.request is not request:
            # Answered when its session was ended.
            return
        if answer is BLOCKED:
            request.watch_deadline()
        elif rest_us:
            self.later(rest_us, self._answer, request, answer)
        else:
            session.request = None
            session.idle_since_us = self.now_us() if session.in_transaction else None
            session.wire.bring(request, answer)

    # ── what a statement may do ──────────────────────────────────────────────────────────────────────

    def accept(self, session: Session) -> None:
        """A connection is made."""
        if not self.is_accepting:
            raise StatementFailedError(Fault("refused", "the server does not accept connections"))
        self.sessions[session] = None

    def lock(self, session: Session, wanted: Sequence[Want], then: Callable[[], Answer]) -> Answer:
        """Take the locks in their order, then evaluate `then`; begins a transaction if there is none."""
        if self.is_read_only:
            raise StatementFailedError(Fault("refused", "the server is read-only, as after a failover"))
        session.in_transaction = True
        wait = LockWait(session, wanted, lambda _: self._granted(session, then))
        if self.locks.acquire(wait):
            return then()
        if session in self.locks.blockers(session):
            raise StatementFailedError(Fault("conflict", "deadlock", "deadlock"))
        self.later(LOCK_US[session.role], self._wait_no_longer, wait)
        self._look_at_blockers(wait)
        return BLOCKED

    def commit(
        self, session: Session, effect: Callable[[], Result], proofs: Sequence[Proof] = ()
    ) -> Result | object:
        """Carry out `effect`, everything that the transaction changes, and end it; `proofs` held for it."""
        slow_us = self.draw_slowness(is_commit=True)
        if not slow_us:
            return self._finish(session, effect, proofs)
        session.is_committing = True
        self.later(slow_us, self._finish_later, session, effect, proofs)
        self._committing[session] = lambda: self._finish(session, effect, proofs)
        return BLOCKED

    def end_transaction(self, session: Session) -> None:
        """Give back its locks; what it has not committed never was."""
        session.in_transaction = False
        session.idle_since_us = None
        if session.locks or session.waiting is not None:
            self.locks.release(session)

    def end_session(self, session: Session, reason: str = "the session was ended") -> None:
        """Roll back and free all locks, those of nodes too; a COMMIT under way is carried out before."""
        if session.is_ended:
            return
        if session.is_committing:
            session.is_ending = True
            return
        session.is_ended = True
        self.end_transaction(session)
        self.sessions.pop(session, None)
        for node_id in [name for name, holder in self.node_locks.items() if holder is session]:
            del self.node_locks[node_id]
        request, session.request = session.request, None
        if request is not None:
            session.wire.bring(request, lost(reason))

    def hold_node_lock(self, session: Session, node_id: str) -> None:
        """Take the lock of a node for the session, unless another has it."""
        if self.has_session_locks and node_id not in session.held_locks:
            holder = self.node_locks.get(node_id)
            if holder is None or self._has_idled_out(holder):
                self.node_locks[node_id] = session
                session.held_locks.add(node_id)

    def free_node_lock(self, session: Session, node_id: str) -> None:
        session.held_locks.discard(node_id)
        if self.node_locks.get(node_id) is session:
            del self.node_locks[node_id]

    def is_node_lock_free(self, node_id: str) -> bool:
        holder = self.node_locks.get(node_id)
        return holder is None or self._has_idled_out(holder)

    def require_room(self, *, is_small: bool = False) -> None:
        """What has to be written finds its place on the disk; `is_small`: no more than a few bytes."""
        if self.is_full and not (is_small and self.small_writes_fit):
            raise StatementFailedError(Fault("full", "no space left on the device"))

    # ── waiting, silence, slow commits ───────────────────────────────────────────────────────────────

    def _granted(self, session: Session, then: Callable[[], Answer]) -> None:
        if session.request is not None:
            self._answer(session.request, self._result_of(session, lambda _: then()))

    def _wait_no_longer(self, wait: LockWait) -> None:
        session = wait.session
        if session.waiting is wait and session.request is not None:
            self.end_transaction(session)
            failure = StatementFailedError(Fault("conflict", "lock timeout", "lock_timeout"))
            self._answer(session.request, Failed(failure))

    def _look_at_blockers(self, wait: LockWait) -> None:
        """End those that are silent for too long, now and as long as `wait` lasts."""
        if wait.session.waiting is not wait:
            return
        next_us = _LOOK_US
        for blocker in () if self.is_stalled else self.locks.blockers(wait.session):
            if blocker.idle_since_us is not None and not self._has_idled_out(blocker):
                left_us = blocker.idle_since_us + IDLE_US[blocker.role] - self.now_us()
                next_us = min(next_us, left_us)
        if wait.session.waiting is wait:
            self.later(next_us, self._look_at_blockers, wait)

    def _has_idled_out(self, session: Session) -> bool:
        """Whether it was silent amid a transaction for longer than the server allows; then it is ended.

        Looked at when it matters to somebody, rather than by a timer for each statement.
        """
        since_us = session.idle_since_us
        if since_us is None or self.now_us() < since_us + IDLE_US[session.role] or self.is_stalled:
            return False
        self.end_session(session)
        return True

    def _finish(self, session: Session, effect: Callable[[], Result], proofs: Sequence[Proof]) -> Result:
        try:
            return self.tables.transact(session.wire.name, effect, proofs)
        finally:
            self.end_transaction(session)

    def _finish_later(self, session: Session, effect: Callable[[], Result], proofs: Sequence[Proof]) -> None:
        if self.is_stalled:
            self.after_stall(self._finish_later, session, effect, proofs)
        elif self._committing.pop(session, None) is not None:
            session.is_committing = False
            request = session.request
            answer = self._result_of(session, lambda _: self._finish(session, effect, proofs))
            if request is not None:
                self._answer(request, answer)
            if session.is_ending:
                self.end_session(session)
