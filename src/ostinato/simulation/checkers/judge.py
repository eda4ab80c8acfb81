"""The judge: tells checkers what they listen to, each transaction as a whole, and gathers the violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ostinato.simulation.checkers.acts import Acts
from ostinato.simulation.checkers.belief import BeliefEnds
from ostinato.simulation.checkers.breakage import Breakage
from ostinato.simulation.checkers.checker import Checker, Known, Transaction
from ostinato.simulation.checkers.fires import Fires
from ostinato.simulation.checkers.i01_single_execution import SingleExecution
from ostinato.simulation.checkers.i02_nothing_lost import NothingLost
from ostinato.simulation.checkers.i03_bounded_attempts import BoundedAttempts
from ostinato.simulation.checkers.i04_never_early import NeverEarly
from ostinato.simulation.checkers.i05_one_decision_maker import OneDecisionMaker
from ostinato.simulation.checkers.i06_results_count_once import ResultsCountOnce
from ostinato.simulation.checkers.i07_terminal_is_final import TerminalIsFinal
from ostinato.simulation.checkers.i08_one_instance_per_fire import OneInstancePerFire
from ostinato.simulation.checkers.i09_nothing_hangs import NothingHangs
from ostinato.simulation.checkers.liveness import Liveness
from ostinato.simulation.checkers.places import RightPlaces
from ostinato.simulation.checkers.reasons import TrueReasons
from ostinato.simulation.checkers.retry_budgets import RetryBudgets
from ostinato.simulation.checkers.retry_times import RetryTimes
from ostinato.simulation.checkers.told import EverythingTold
from ostinato.simulation.history import (
    Event,
    HistoryCommitted,
    NodeRowCommitted,
    OwnerCommitted,
    RequestCommitted,
    RowCommitted,
    TaskCommitted,
    TriggerCommitted,
    Violation,
)

CHECKERS: tuple[type[Checker], ...] = (
    SingleExecution,
    NothingLost,
    BoundedAttempts,
    NeverEarly,
    OneDecisionMaker,
    ResultsCountOnce,
    TerminalIsFinal,
    OneInstancePerFire,
    NothingHangs,
    RetryTimes,
    RetryBudgets,
    EverythingTold,
    Acts,
    Fires,
    TrueReasons,
    RightPlaces,
    BeliefEnds,
    Breakage,
    Liveness,
)
#: Enough to understand a run; one that goes wrong goes wrong in every later event too.
VIOLATIONS_MAX = 20

_Committed = (
    RowCommitted
    | HistoryCommitted
    | OwnerCommitted
    | NodeRowCommitted
    | RequestCommitted
    | TaskCommitted
    | TriggerCommitted
)


class Judge:
    """Give it to ``History.listen``; `finish` once, at the end of the run."""

    def __init__(self, known: Known, checkers: Iterable[type[Checker]] = CHECKERS) -> None:
        self.violations: list[Violation] = []
        #: Called at the first one.
        self.on_violated: Callable[[], None] = _nobody
        self.checkers = [kind(known, self._report) for kind in checkers]
        self._open: Transaction | None = None
        self._listeners: dict[type[Event], Sequence[Callable[[Event], None]]] = {}
        for checker in self.checkers:
            for kind in checker.listens:
                self._listeners[kind] = [*self._listeners.get(kind, ()), checker.on]
        self._to_transaction = self._listeners.get(Transaction, ())

    def __call__(self, event: Event) -> None:
        """Something has happened."""
        if isinstance(event, _Committed):
            self._gather(event)
            return
        self._close()
        for listener in self._listeners.get(type(event), ()):
            listener(event)

    def finish(self, at_us: int) -> list[Violation]:
        """What was violated, in the order in which it was seen."""
        self._close()
        for checker in self.checkers:
            checker.finish(at_us)
        return self.violations

    def _gather(self, event: _Committed) -> None:
        whole = self._open
        if whole is None or whole.number != event.transaction:
            self._close()
            whole = Transaction(at_us=event.at_us, number=event.transaction, process=event.process)
            self._open = whole
        match event:
            case RowCommitted():
                whole.rows.append(event)
            case HistoryCommitted():
                whole.history.append(event.row)
            case OwnerCommitted():
                whole.owners.append(event)
            case NodeRowCommitted():
                whole.nodes.append(event)
            case RequestCommitted():
                whole.requests.append(event)
            case TaskCommitted():
                whole.tasks.append(event)
            case TriggerCommitted():
                whole.triggers.append(event)

    def _close(self) -> None:
        whole, self._open = self._open, None
        if whole is not None:
            for listener in self._to_transaction:
                listener(whole)

    def _report(self, violation: Violation) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(violation)
        if len(self.violations) == 1:
            self.on_violated()


def _nobody() -> None:
    """Nobody wants to know before the end."""
