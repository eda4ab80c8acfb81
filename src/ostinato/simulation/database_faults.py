"""What can be wrong with the simulated database: each a method that breaks, and one that mends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from ostinato.simulation.database_wire import KEEPALIVE_US, WAY_US, Wire

if TYPE_CHECKING:
    from ostinato.simulation.database_clock import DatabaseClock
    from ostinato.simulation.database_sessions import Session
    from ostinato.simulation.database_transactions import Transactions
    from ostinato.simulation.database_world import Timer


class DatabaseFaults(ABC):
    """The part of ``DatabaseServer`` that a driver of faults calls. Names are those of machines."""

    rng: Random
    clock: DatabaseClock
    transactions: Transactions
    now_us: Callable[[], int]

    @abstractmethod
    def wire_of(self, name: str) -> Wire: ...

    @abstractmethod
    def later(self, delay_us: int, callback: Callable[..., object], *args: object) -> Timer: ...

    def __init__(self) -> None:
        self.is_accepting = True
        self.is_stalled = False
        self.is_read_only = False
        #: Writes fail, those that need little room too.
        self.is_full = False
        self.small_writes_fit = False
        self.lost_hint_share = 0.0
        self.hint_delay_us = (0, 1)
        self.identity_number = 1
        self._slow_share = 0.0
        self._slow_us = (0, 1)
        self._slow_commit_share = 0.0
        self._slow_commit_us = (0, 1)
        self._after_stall: list[Callable[[], None]] = []

    # ── the server ───────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """End all sessions and take no more. Commits under way have happened or not; none is answered.

        Ends a stall as well.
        """
        self.is_accepting = False
        self.transactions.end_all()
        if self.is_stalled:
            self.resume()

    def start(self) -> None:
        """Take sessions again."""
        self.is_accepting = True

    def restart(self, down_us: int) -> None:
        """Stop, and start by itself after `down_us`."""
        self.stop()
        self.later(down_us, self.start)

    def fail_over(self, down_us: int) -> None:
        """Restart as another server with the same rows: nothing acknowledged is lost, the identity is new."""
        self.restart(down_us)
        self.identity_number += 1

    def stall(self) -> None:
        """Answer nothing and do nothing, with every connection open."""
        self.is_stalled = True

    def resume(self) -> None:
        """Go on with what has come in meanwhile, in any order."""
        self.is_stalled = False
        for session in self.transactions.sessions:
            # What wakes first, the time-out or the message, decides about a transaction.
            if session.idle_since_us is not None and self.rng.random() < 0.5:
                session.idle_since_us = self.now_us()
        waiting, self._after_stall = self._after_stall, []
        self.rng.shuffle(waiting)
        for callback in waiting:
            callback()

    def after_stall(self, callback: Callable[..., None], *args: object) -> None:
        """Call once the server has been resumed."""
        self._after_stall.append(lambda: callback(*args))

    def set_read_only(self) -> None:
        """Refuse whatever writes or locks."""
        self.is_read_only = True

    def set_writable(self) -> None:
        self.is_read_only = False

    def fill_disk(self, *, small_writes_fit: bool) -> None:
        """No room for rows. `small_writes_fit`: renewals and changes of owners still find some."""
        self.is_full = True
        self.small_writes_fit = small_writes_fit

    def free_disk(self) -> None:
        self.is_full = False

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────

    def slow_statements(self, share: float, us: tuple[int, int]) -> None:
        """A `share` of the statements takes so long (at least, less than), with what it has locked."""
        self._slow_share, self._slow_us = share, us

    def slow_commits(self, share: float, us: tuple[int, int]) -> None:
        """A `share` of the commits takes so long until everybody sees it; nothing ends it any more.

        Who gives up meanwhile does not know that it happens, and others see rows long after their instants.
        """
        self._slow_commit_share, self._slow_commit_us = share, us

    def full_speed(self) -> None:
        self._slow_share = self._slow_commit_share = 0.0

    def draw_slowness(self, *, is_commit: bool = False) -> int:
        """How long this statement takes beyond its instant."""
        if is_commit:
            if self._slow_commit_share and self.rng.random() < self._slow_commit_share:
                return self.rng.randrange(*self._slow_commit_us)
        elif self._slow_share and self.rng.random() < self._slow_share:
            return self.rng.randrange(*self._slow_us)
        return 0

    def jump_clock(self, by_us: int) -> None:
        self.clock.jump(by_us)

    def drift_clock(self, ppm: int) -> None:
        self.clock.drift(ppm)

    def correct_clock(self) -> None:
        self.clock.correct()

    # ── the way of one machine ───────────────────────────────────────────────────────────────────────

    def slow_wire(self, name: str, *, there_us: tuple[int, int], back_us: tuple[int, int]) -> None:
        """Each way takes at least, and less than."""
        wire = self.wire_of(name)
        wire.there_us, wire.back_us = there_us, back_us

    def fast_wire(self, name: str) -> None:
        self.slow_wire(name, there_us=WAY_US, back_us=WAY_US)

    def break_connections(
        self, name: str, *, there_share: float, back_share: float, commits_only: bool = False
    ) -> None:
        """A share of the statements is lost with its connection before it arrives, and one of the answers.

        `commits_only`: of the COMMITs, which nobody repeats.
        """
        wire = self.wire_of(name)
        wire.broken_there_share, wire.broken_back_share = there_share, back_share
        wire.breaks_commits_only = commits_only

    def keep_connections(self, name: str) -> None:
        self.break_connections(name, there_share=0.0, back_share=0.0)

    def refuse(self, name: str) -> None:
        """Break every connection of a machine, and refuse new ones."""
        self.wire_of(name).is_refused = True
        self.end_sessions(name)

    def silence(self, name: str, *, there: bool = True, back: bool = True) -> None:
        """Nothing arrives one way or both, and nobody is told. The server finds out after seconds."""
        wire = self.wire_of(name)
        wire.is_silent_there |= there
        wire.is_silent_back |= back
        for session in list(self.transactions.sessions):
            if session.wire is wire:
                self.later(self.rng.randrange(*KEEPALIVE_US), self._end_if_silent, session)

    def reconnect(self, name: str) -> None:
        """Let pass again what goes between the machine and the database; what was kept goes on its way."""
        wire = self.wire_of(name)
        wire.is_refused = wire.is_silent_there = wire.is_silent_back = False
        wire.go_on()

    def end_sessions(self, name: str) -> None:
        """As an administrator would: mended by the next connection."""
        for session in list(self.transactions.sessions):
            if session.wire.name == name:
                self.transactions.end_session(session, "an administrator has ended the connection")

    def lose_node_locks(self, name: str) -> None:
        """The session locks of a machine's nodes become free unnoticed; its next session takes them again."""
        for node_id, holder in list(self.transactions.node_locks.items()):
            if holder.wire.name == name:
                del self.transactions.node_locks[node_id]

    # ── hints ────────────────────────────────────────────────────────────────────────────────────────

    def disturb_hints(self, *, lost_share: float, delay_us: tuple[int, int]) -> None:
        """A share of the hints of changes is lost, the others come late."""
        self.lost_hint_share, self.hint_delay_us = lost_share, delay_us

    def calm_hints(self) -> None:
        self.disturb_hints(lost_share=0.0, delay_us=(0, 1))

    # ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _end_if_silent(self, session: Session) -> None:
        wire = session.wire
        if wire.is_silent_there or wire.is_silent_back:
            self.transactions.end_session(session)
