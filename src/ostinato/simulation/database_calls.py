"""Calls of one process to the simulated server: connections, deadlines, repetition, errors.

The twin of ``store.server.database``, whose rules these are; kept apart, because a real connection needs an
asyncio task for each transaction, which would cost more here than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND
from ostinato.errors import OstinatoError
from ostinato.simulation.database_locks import Want
from ostinato.simulation.database_pool import Pool
from ostinato.simulation.database_sessions import (
    Action,
    Answer,
    DeadlineOverError,
    Session,
    StatementFailedError,
)
from ostinato.store.batches import Proof
from ostinato.store.server.database import DEADLINE_US, RENEWAL_DEADLINE_US, ROLES, Role, split_pool
from ostinato.store.server.faults import Fault, error_of, timed_out, unknown_commit
from ostinato.store.server.url import POOL_SIZE

if TYPE_CHECKING:
    from ostinato.simulation.database import DatabaseServer
    from ostinato.simulation.database_wire import Wire

#: Runs of one call that meets the same kind of fault, the first included; and the pauses between them.
_RUNS_MAX = {"conflict": 12, "lost": 6, "refused": 6}
_BACK_OFF_FIRST_US = 10 * MILLISECOND
_BACK_OFF_LAST_US = 500 * MILLISECOND
_SUBJECT = "the simulated database"

Result = TypeVar("Result")


def _nothing(_: Session) -> None:
    """Locks are all that there is to do."""


class Transaction:
    """What a transaction says to the server, statement by statement."""

    __slots__ = ("_ends_us", "_server", "_session")

    def __init__(self, server: DatabaseServer, session: Session, *, ends_us: int) -> None:
        self._server = server
        self._session = session
        self._ends_us = ends_us

    async def lock(self, wanted: Sequence[Want], then: Action = _nothing) -> Answer:
        """A statement that takes locks, in their order, and then does `then`, whose answer is its own."""
        lock = self._server.transactions.lock
        return await self.act(lambda session: lock(session, wanted, then=lambda: then(session)))

    async def act(self, action: Action) -> Answer:
        """A statement that does `action`."""
        return await self._server.ask(self._session, action, ends_us=self._ends_us)

    async def commit(self, effect: Callable[[], Answer], proofs: Sequence[Proof] = ()) -> Answer:
        """COMMIT: everything that the transaction changes is `effect`; `proofs` have held for it."""
        commit = self._server.transactions.commit
        self._session.has_sent_commit = True
        return await self.act(lambda session: commit(session, effect, proofs=proofs))

    def blockers(self) -> list[Session]:
        """Sessions that keep the transaction waiting now, and wait for nobody themselves."""
        return self._server.transactions.locks.blockers(self._session)


Work = Callable[[Transaction], Coroutine[Any, Any, Result]]


class Calls:
    """Connections by role, and the calls over them."""

    def __init__(self, server: DatabaseServer, wire: Wire, *, process: str, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self._wire = wire
        sizes = split_pool(POOL_SIZE)._asdict()
        self._pools: dict[Role, Pool] = {
            role: Pool(partial(Session, wire, process=process, role=role), server, size=sizes[role])
            for role in ROLES
        }

    # Both return the coroutine of what they call: each one around it would cost something at every await.

    def read(self, operation: str, action: Action, *, role: Role) -> Coroutine[Any, Any, Answer]:
        """Answer of `action`, which only reads, or changes what belongs to the session alone."""
        ask = self.server.ask
        return self._run(
            operation,
            lambda session, ends_us: ask(session, action, ends_us=ends_us),
            role=role,
            deadline_us=DEADLINE_US,
        )

    def run(
        self, operation: str, work: Work[Result], *, role: Role, deadline_us: int = DEADLINE_US
    ) -> Coroutine[Any, Any, Result]:
        """Result of `work`, repeated after conflicts, and after losses before its COMMIT was sent.

        Raises ``DATABASE_UNAVAILABLE`` and ``DATABASE_FULL`` as the adapters of real servers do.
        """
        server = self.server
        return self._run(
            operation,
            lambda session, ends_us: work(Transaction(server, session, ends_us=ends_us)),
            role=role,
            deadline_us=deadline_us,
        )

    async def _run(
        self,
        operation: str,
        work: Callable[[Session, int], Coroutine[Any, Any, Result]],
        *,
        role: Role,
        deadline_us: int,
    ) -> Result:
        server, pool = self.server, self._pools[role]
        limit_us = min(deadline_us, RENEWAL_DEADLINE_US) if role == "renewal" else deadline_us
        ends_us = server.now_us() + limit_us
        runs = 0
        while True:
            runs += 1
            session: Session | None = None
            try:
                session = pool.take_free() or await pool.take(ends_us)
                session.has_sent_commit = False
                result = await work(session, ends_us)
            except DeadlineOverError:
                # It may be the network that is silent: then no idle connection is any better.
                pool.discard_idle()
                self._end(pool, session, is_clean=False)
                raise timed_out(operation, deadline_us=limit_us, subject=_SUBJECT) from None
            except StatementFailedError as error:
                fault = error.fault
                if not fault.is_certain:
                    pool.discard_idle()
                self._end(pool, session, is_clean=fault.is_certain)
                if session is not None and session.has_sent_commit and not fault.is_certain:
                    raise unknown_commit(fault.reason, operation=operation, subject=_SUBJECT) from error
                pause_us = self._pause_us(fault, runs)
                if pause_us is None or server.now_us() + pause_us >= ends_us:
                    raise error_of(fault, operation=operation, subject=_SUBJECT) from error
            except BaseException as error:
                self._end(pool, session, is_clean=isinstance(error, OstinatoError))
                raise
            else:
                pool.give(session)
                return result
            await self.clock.sleep_until_us(self.clock.boot_us() + pause_us)

    @property
    def can_reach_server(self) -> bool:
        """Whether a new connection would be made and answered."""
        return not self._wire.is_cut and self.server.is_accepting and not self.server.is_stalled

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def crash(self) -> None:
        """Every connection is closed by the machine's kernel; where that is cut off, found silent."""
        for pool in self._pools.values():
            for session in pool.sessions:
                self._wire.end(session)

    def _end(self, pool: Pool, session: Session | None, *, is_clean: bool) -> None:
        if session is not None:
            if is_clean:
                pool.give(session)
            else:
                pool.discard(session)

    def _pause_us(self, fault: Fault, runs: int) -> int | None:
        """Back-off before the next run, half of it drawn; None when there is to be none."""
        if runs >= _RUNS_MAX.get(fault.kind, 0):
            return None
        longest_us = min(_BACK_OFF_FIRST_US << (runs - 1), _BACK_OFF_LAST_US)
        return longest_us // 2 + self.server.rng.randrange(longest_us // 2)


def run_at_once(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Result of a coroutine of the in-memory store, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a call of the in-memory store has waited")
