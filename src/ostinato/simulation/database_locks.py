"""Row locks of the simulated database: who holds what, who waits for whom, and in which order they go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ostinato.simulation.database_sessions import Session

#: What can be locked: the kind of row, and what names it.
Resource: TypeAlias = tuple[str | int, ...]


class Want(NamedTuple):
    """One lock that a statement takes; a shared one goes together with other shared ones."""

    resource: Resource
    is_exclusive: bool


def exclusive(resources: Iterable[Resource]) -> list[Want]:
    """Locks for a change, in this order."""
    return [Want(resource, is_exclusive=True) for resource in resources]


def shared(resources: Iterable[Resource]) -> list[Want]:
    """Locks against a change, in this order."""
    return [Want(resource, is_exclusive=False) for resource in resources]


class LockWait:
    """A statement that takes locks, in its order; `granted` is called if it had to wait and has them all."""

    __slots__ = ("granted", "session", "taken_count", "wanted")

    def __init__(
        self, session: Session, wanted: Sequence[Want], *, granted: Callable[[LockWait], None]
    ) -> None:
        self.session = session
        self.wanted = wanted
        self.granted = granted
        self.taken_count = 0


class LockTable:
    """All row locks. Held by sessions until their transaction ends."""

    def __init__(self, *, readers_overtake: bool) -> None:
        """`readers_overtake`: a shared lock is granted though an exclusive one waits, as in PostgreSQL.

        Otherwise who came first goes first, as in InnoDB.
        """
        self._readers_overtake = readers_overtake
        self._holders: dict[Resource, dict[Session, bool]] = {}
        self._queues: dict[Resource, deque[LockWait]] = {}

    @property
    def is_any_held(self) -> bool:
        """Whether anybody holds or waits for anything."""
        return bool(self._holders or any(self._queues.values()))

    def acquire(self, wait: LockWait) -> bool:
        """Whether all locks of `wait` are held; otherwise its session waits for the first that is not."""
        while wait.taken_count < len(wait.wanted):
            want = wait.wanted[wait.taken_count]
            if not self._may_take(wait.session, want):
                self._queues.setdefault(want.resource, deque()).append(wait)
                wait.session.waiting = wait
                return False
            self._take(wait)
        return True

    def release(self, session: Session) -> None:
        """Free everything that `session` holds or waits for; whoever waited for it goes on."""
        self.cancel(session)
        freed = list(session.locks)
        session.locks.clear()
        for resource in freed:
            holders = self._holders[resource]
            del holders[session]
            if not holders:
                del self._holders[resource]
        for resource in freed:
            self._wake(resource)

    def cancel(self, session: Session) -> None:
        """End the wait of `session`, if it waits."""
        wait, session.waiting = session.waiting, None
        if wait is None:
            return
        resource = wait.wanted[wait.taken_count].resource
        self._queues[resource].remove(wait)
        self._wake(resource)

    def blockers(self, session: Session) -> list[Session]:
        """Those for which `session` waits and that wait for nobody, through any number in between.

        A session that waits for itself in the end is in a deadlock, and among them.
        """
        found: dict[Session, None] = {}
        seen: dict[Session, None] = {}
        to_visit = self._directly_before(session)
        while to_visit:
            other = to_visit.pop()
            if other in seen:
                continue
            seen[other] = None
            if other is session or other.waiting is None:
                found[other] = None
            else:
                to_visit += self._directly_before(other)
        return list(found)

    def _directly_before(self, session: Session) -> list[Session]:
        wait = session.waiting
        if wait is None:
            return []
        want = wait.wanted[wait.taken_count]
        return [
            holder
            for holder, is_exclusive in self._holders.get(want.resource, {}).items()
            if holder is not session and (want.is_exclusive or is_exclusive)
        ]

    def _may_take(self, session: Session, want: Want) -> bool:
        holders = self._holders.get(want.resource)
        if holders:
            if holders.get(session, False):
                return True
            for holder, is_exclusive in holders.items():
                if holder is not session and (want.is_exclusive or is_exclusive):
                    return False
            if session in holders:
                return True
        return not self._queues.get(want.resource) or (self._readers_overtake and not want.is_exclusive)

    def _take(self, wait: LockWait) -> None:
        want = wait.wanted[wait.taken_count]
        wait.taken_count += 1
        holders = self._holders.setdefault(want.resource, {})
        holders[wait.session] = want.is_exclusive or holders.get(wait.session, False)
        wait.session.locks[want.resource] = None

    def _wake(self, resource: Resource) -> None:
        """Let those go on that wait for `resource`, as far as what is held allows, first come first."""
        queue = self._queues.pop(resource, None)
        while queue:
            wait = queue[0]
            if not self._may_take(wait.session, wait.wanted[wait.taken_count]):
                break
            queue.popleft()
            wait.session.waiting = None
            self._take(wait)
            if self.acquire(wait):
                wait.granted(wait)
        if queue:
            # What was granted may have had others queue up behind meanwhile.
            queue.extend(self._queues.get(resource, ()))
            self._queues[resource] = queue
