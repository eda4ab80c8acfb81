"""``DatabaseServer``: one database for all processes of a run: sessions, locks, commits.

A call is carried out on the server at the moment at which it arrives, and answered later. A transaction
that writes holds its locks from its first statement to its COMMIT, with a way back and forth in between. Its
changes happen at the COMMIT, all at one instant; to everybody else that is the same, as what it has locked
cannot have changed meanwhile. What is evaluated earlier (proofs) is kept.

    process ──► Wire ──► Session: statement ─► locks ─► answer ─► … ─► COMMIT ─► changes ─► answer
                                     │ blocked: until granted, timed out, deadlocked or ended
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from random import Random

from ostinato.clock import Clock
from ostinato.core.model import Instance
from ostinato.errors import OstinatoError
from ostinato.simulation.database_clock import DatabaseClock
from ostinato.simulation.database_faults import DatabaseFaults
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
from ostinato.simulation.database_transactions import Transactions
from ostinato.simulation.database_wire import Wire
from ostinato.simulation.database_world import DatabaseClient, DatabaseLoop, Timer
from ostinato.simulation.history import History
from ostinato.store.memory import MemoryStore
from ostinato.store.server.faults import Fault


class DatabaseServer(DatabaseFaults):
    """The rows, the sessions of everybody, and what is wrong at the moment (``DatabaseFaults``)."""

    def __init__(
        self,
        loop: DatabaseLoop,
        history: History,
        *,
        rng: Random,
        partition_count: int = 64,
        has_session_locks: bool = True,
        clock: Clock | None = None,
        key_lifetime_us: int | None = None,
    ) -> None:
        """Made outside of every process: what the server does goes on while they stand still.

        `has_session_locks` false: a proxy pools transactions. `clock`: the database's; None: its own.
        `key_lifetime_us`: idempotency keys live so long, whatever was asked for; None: as long as that.
        """
        super().__init__()
        self.loop = loop
        self.rng = rng
        self.now_us = history.now_us
        self.clock = DatabaseClock(history.now_us)
        self.has_session_locks = has_session_locks
        self.key_lifetime_us = key_lifetime_us
        self.tables = ObservedTables(partition_count, history)
        self.memory = MemoryStore(clock or self.clock, tables=self.tables)
        self.transactions = Transactions(self)
        self.stores: list[SimulatedStore] = []
        self._wires: dict[str, Wire] = {}
        self._context = copy_context()

    def store_for(self, process: DatabaseClient, clock: Clock) -> SimulatedStore:
        """The store of one process, with connections of its own; `clock` is that of the process."""
        store = SimulatedStore(self, self.wire_of(process.machine), process=process.name, clock=clock)
        self.stores.append(store)
        process.on_crash(store.crash)
        return store

    def forget(self, store: SimulatedStore) -> None:
        """Nobody uses it any more."""
        if store in self.stores:
            self.stores.remove(store)

    def wire_of(self, name: str) -> Wire:
        """The way between a machine and the database."""
        wire = self._wires.get(name)
        if wire is None:
            wire = self._wires[name] = Wire(self, name)
        return wire

    def tell_of_breaks(self) -> None:
        """Whoever still waits for an answer over a broken connection hears of it within a second."""
        for wire in self._wires.values():
            wire.tell_of_breaks()

    def announce(self, teller: SimulatedStore, hinted: Sequence[Instance]) -> None:
        """Tell every other process that listens that there is something to find; each hint may be lost."""
        if not self.is_accepting or self.is_stalled or teller.wire.is_cut:
            return
        for store in self.stores:
            if store is teller or not store.is_listening or store.wire.is_cut:
                continue
            if self.lost_hint_share and self.rng.random() < self.lost_hint_share:
                continue
            late_us = self.rng.randrange(*self.hint_delay_us)
            self.later(teller.wire.way_us() + store.wire.way_us() + late_us, store.hear, hinted)

    def later(self, delay_us: int, callback: Callable[..., object], *args: object) -> Timer:
        """Call after `delay_us`, whatever the processes do."""
        return self.loop.call_at_us(self.now_us() + delay_us, callback, *args, context=self._context)

    def at(self, at_us: int, callback: Callable[..., object], *args: object) -> Timer:
        """Call at a true time, as `later`."""
        return self.loop.call_at_us(at_us, callback, *args, context=self._context)

    # ── statements ───────────────────────────────────────────────────────────────────────────────────

    async def ask(self, session: Session, action: Action, *, ends_us: int) -> Answer:
        """At the client: have `action` carried out on the server, at one instant, and return its answer.

        Raises what it raises, ``StatementFailedError``, and ``DeadlineOverError`` at `ends_us`.
        """
        # Who was frozen until after its deadline may still send before it looks at the time.
        if self.now_us() >= ends_us and self.rng.random() < 0.5:
            raise DeadlineOverError
        request = Request(self, session, action=action, ends_us=ends_us)
        session.wire.carry(request)
        answer = await request.answer
        if type(answer) is Failed:
            raise answer.error
        return answer

    def arrive(self, request: Request) -> None:
        """A statement has come in."""
        session, action = request.session, request.action
        if self.is_stalled:
            self.after_stall(self.arrive, request)
            request.watch_deadline()
        elif action is None:
            self.transactions.end_session(session)
        elif session.is_ended or self.transactions.has_idled_out(session):
            session.wire.bring(request, lost("the server has ended the session"))
        else:
            session.idle_since_us = None
            session.request = request
            slow_us = self.draw_slowness()
            if slow_us:
                before_us = self.rng.randrange(slow_us)
                request.watch_deadline()
                self.later(before_us, self._begin, request, action, slow_us - before_us)
            else:
                self.carry_on(request, action)

    def _begin(self, request: Request, action: Action, rest_us: int) -> None:
        if self.is_stalled:
            self.after_stall(self._begin, request, action, rest_us)
        elif not request.session.is_ended:
            self.carry_on(request, action, rest_us=rest_us)

    def carry_on(self, request: Request, action: Action, *, rest_us: int = 0) -> None:
        """Do `action`, and answer what it answers; a failure rolls back."""
        answer: Answer
        try:
            answer = action(request.session)
        except (StatementFailedError, OstinatoError) as error:
            self.transactions.end_transaction(request.session)
            answer = Failed(error)
        self.answer(request, answer, rest_us=rest_us)

    def answer(self, request: Request, answer: Answer, *, rest_us: int = 0) -> None:
        """Send `answer` once the statement has run for `rest_us` more."""
        session = request.session
        if session.request is not request:
            # Answered when its session was ended.
            return
        if answer is BLOCKED:
            request.watch_deadline()
        elif rest_us:
            self.later(rest_us, self.answer, request, answer)
        else:
            session.request = None
            session.idle_since_us = self.now_us() if session.in_transaction else None
            session.wire.bring(request, answer)

    def accept(self, session: Session) -> None:
        """A connection is made."""
        if not self.is_accepting:
            raise StatementFailedError(Fault("refused", "the server does not accept connections"))
        self.transactions.sessions[session] = None

    def require_room(self, *, is_small: bool = False) -> None:
        """What has to be written finds its place on the disk; `is_small`: no more than a few bytes."""
        if self.is_full and not (is_small and self.small_writes_fit):
            raise StatementFailedError(Fault("full", "no space left on the device"))
