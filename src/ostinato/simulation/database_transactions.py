"""Sessions of the simulated server: their transactions, what they lock, how they wait and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.simulation.database_locks import LockTable, LockWait, Want
from ostinato.simulation.database_sessions import (
    BLOCKED,
    Answer,
    Failed,
    Session,
    StatementFailedError,
    lost,
)
from ostinato.store.batches import Proof
from ostinato.store.server.database import Role
from ostinato.store.server.faults import Fault

if TYPE_CHECKING:
    from ostinato.simulation.database import DatabaseServer

#: As the adapters of the real servers have it: silence amid a transaction, and waiting for one lock.
IDLE_US: dict[Role, int] = {"owner": 2 * SECOND, "renewal": 2 * SECOND, "people": 4 * SECOND}
LOCK_US: dict[Role, int] = {"owner": 2500 * MILLISECOND, "renewal": SECOND, "people": 4 * SECOND}
#: How often is looked, at least, whether who blocks a statement is silent for too long.
_LOOK_US = 250 * MILLISECOND


class Transactions:
    """Every open session with what it holds. What is done here is done on the server, at one instant."""

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self.locks = LockTable(readers_overtake=server.rng.random() < 0.5)
        self.sessions: dict[Session, None] = {}
        #: Who holds the session lock of which node.
        self.node_locks: dict[str, Session] = {}
        #: Commits that take long, and what carries them out.
        self._committing: dict[Session, Callable[[], Answer]] = {}

    # ── statements ───────────────────────────────────────────────────────────────────────────────────

    def lock(self, session: Session, wanted: Sequence[Want], *, then: Callable[[], Answer]) -> Answer:
        """Take the locks in their order, then evaluate `then`; begins a transaction if there is none.

        Answers ``BLOCKED`` where it has to wait. Raises ``StatementFailedError`` for a deadlock.
        """
        if self._server.is_read_only:
            raise StatementFailedError(Fault("refused", "the server is read-only, as after a failover"))
        session.in_transaction = True
        wait = LockWait(session, wanted, granted=lambda _: self._granted(session, then))
        if self.locks.acquire(wait):
            return then()
        if session in self.locks.blockers(session):
            raise StatementFailedError(Fault("conflict", "deadlock", "deadlock"))
        self._server.later(LOCK_US[session.role], self._wait_no_longer, wait)
        self._look_at_blockers(wait)
        return BLOCKED

    def commit(self, session: Session, effect: Callable[[], Answer], *, proofs: Sequence[Proof]) -> Answer:
        """Carry out `effect`, everything that the transaction changes, and end it; `proofs` held for it.

        One that takes long happens at its end, and nothing but the end of the server keeps it from that.
        """

        def finish() -> Answer:
            session.is_committing = False
            try:
                return self._server.tables.transact(session.process, effect, proofs=proofs)
            finally:
                self.end_transaction(session)

        slow_us = self._server.draw_slowness(is_commit=True)
        if not slow_us:
            return finish()
        session.is_committing = True
        self._committing[session] = finish
        self._server.later(slow_us, self._finish_slowly, session)
        return BLOCKED

    # ── ends ─────────────────────────────────────────────────────────────────────────────────────────

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

    def end_all(self) -> None:
        """The server ends: commits under way have happened or not, and nobody is told."""
        committing, self._committing = self._committing, {}
        for session, finish in committing.items():
            session.is_committing = False
            if self._server.rng.random() < 0.5:
                finish()
        for session in list(self.sessions):
            self.end_session(session, "the server has ended the connection")

    def has_idled_out(self, session: Session) -> bool:
        """Whether it was silent amid a transaction for longer than the server allows; then it is ended.

        Asked when it matters to somebody: a timer for each statement would cost too much.
        """
        since_us = session.idle_since_us
        if since_us is None or self._server.now_us() < since_us + IDLE_US[session.role]:
            return False
        if self._server.is_stalled:
            return False
        self.end_session(session)
        return True

    # ── session locks of nodes ───────────────────────────────────────────────────────────────────────

    def hold_node_lock(self, session: Session, node_id: str) -> None:
        """Take the lock of a node for the session, unless another has it."""
        if not self._server.has_session_locks or node_id in session.held_locks:
            return
        if self.is_node_lock_free(node_id):
            self.node_locks[node_id] = session
            session.held_locks.add(node_id)

    def free_node_lock(self, session: Session, node_id: str) -> None:
        """Give it back, if the session has it."""
        session.held_locks.discard(node_id)
        if self.node_locks.get(node_id) is session:
            del self.node_locks[node_id]

    def is_node_lock_free(self, node_id: str) -> bool:
        holder = self.node_locks.get(node_id)
        return holder is None or self.has_idled_out(holder)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────

    def _granted(self, session: Session, then: Callable[[], Answer]) -> None:
        if session.request is not None:
            self._server.carry_on(session.request, lambda _: then())

    def _wait_no_longer(self, wait: LockWait) -> None:
        session = wait.session
        if session.waiting is wait and session.request is not None:
            self.end_transaction(session)
            failure = StatementFailedError(Fault("conflict", "lock timeout", "lock_timeout"))
            self._server.answer(session.request, Failed(failure))

    def _look_at_blockers(self, wait: LockWait) -> None:
        """End those that are silent for too long, now and as long as `wait` lasts."""
        if wait.session.waiting is not wait:
            return
        next_us = _LOOK_US
        for blocker in () if self._server.is_stalled else self.locks.blockers(wait.session):
            if blocker.idle_since_us is not None and not self.has_idled_out(blocker):
                left_us = blocker.idle_since_us + IDLE_US[blocker.role] - self._server.now_us()
                next_us = min(next_us, left_us)
        if wait.session.waiting is wait:
            self._server.later(next_us, self._look_at_blockers, wait)

    def _finish_slowly(self, session: Session) -> None:
        if self._server.is_stalled:
            self._server.after_stall(self._finish_slowly, session)
            return
        finish = self._committing.pop(session, None)
        if finish is not None:
            if session.request is not None:
                self._server.carry_on(session.request, lambda _: finish())
            else:
                finish()
            if session.is_ending:
                self.end_session(session)
