"""Retries fall due when the policy says, within the bounds of its jitter, and none is withheld.

The delays are computed here again, by the words of design section 4 and with nothing of the product's.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from ostinato.core.failure.failure import Failure
from ostinato.core.instants import DAY, MILLISECOND, SECOND
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.retry.policy import RetryPolicy, RetryRule
from ostinato.core.states import State
from ostinato.scheduler.shared_time import CONFIRM_AFTER_US
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction, changed
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import Event, RowCommitted

_UNCOUNTED = frozenset({"REFUSED", "HANDED_BACK", "COLLATERAL"})
#: What a rule may say of its own; None is as the policy says.
_OF_RULES = (
    "backoff",
    "interval_us",
    "multiplier",
    "delays_us",
    "max_interval_us",
    "jitter",
    "jitter_factor",
    "max_retry",
)
#: Less than any jump, more than a clock's drift shows between two transactions.
_PUT_BACK_US = 100 * MILLISECOND
#: By then every node has heard of a jump.
_HEARD_US = CONFIRM_AFTER_US + 5 * SECOND
_DECIDED = (HistoryKind.RETRY, HistoryKind.REFUSED, HistoryKind.HANDED_BACK)


class RetryTimes(Checker):
    """Judges each decision on an attempt that ended badly by the definition that the instance pins."""

    invariant = "retry times"
    listens = (Transaction,)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        #: By instance: when its attempt became one (true time).
        self._began_us: Remembered[str, int] = Remembered()
        #: What the database's clock was ahead of true time, and when it was put back last (true time).
        self._ahead_us: int | None = None
        self._put_back_us: int | None = None

    def on(self, event: Event) -> None:
        assert isinstance(event, Transaction), "it listens to nothing else"
        self._look_at_clock(event.at_us)
        for row in event.rows:
            if row.after is not None and row.after.state is State.RUNNING and not _ran(row):
                self._began_us.put(row.after.id, event.at_us, at_us=event.at_us)
            both = changed(row)
            if both is None or both[0].state is not State.RUNNING or both[1].state is State.RUNNING:
                continue
            before, after = both
            definition = self.known.definition(after.ref, after.task_version)
            if definition is None:
                continue
            for told in event.told_of(after.id):
                granted = granted_by(definition.retry, told.failure)
                if told.kind in _DECIDED and after.state is State.RETRY_WAITING:
                    if granted is None:
                        sentence = f"it is retried after {told.code}, which its policy says not to"
                        self.violate(event.at_us, after.id, sentence)
                    else:
                        self._check_due(event.at_us, before, after, told=told, policy=granted)
                        self._check_granted(event.at_us, after, told=told, policy=granted)
                elif told.kind is HistoryKind.GAVE_UP and granted is not None:
                    self._check_given_up(event.at_us, before, after, told=told, policy=granted)

    def _check_due(
        self, at_us: int, before: Instance, after: Instance, *, told: HistoryRow, policy: RetryPolicy
    ) -> None:
        low_us, high_us = _wait_us(before, after, told=told, policy=policy)
        tolerance_us = self.known.time_tolerance_us
        assigned_us = before.assigned_us or 0
        possible_us, now_us = self.known.believed_us(at_us)
        # A clock that has been put back shows the end of an attempt before its beginning, also where it has
        # passed that again until the decision is written.
        is_backwards = assigned_us > possible_us or self._was_put_back(after.id)
        ended_us = told.at_us if is_backwards else max(told.at_us, assigned_us)
        earliest_us = ended_us + low_us
        if after.due_us < earliest_us:
            self.violate(
                at_us,
                after.id,
                f"after {told.code} it is due {earliest_us - after.due_us} us too early: the wait is "
                f"at least {low_us} us from the end of attempt {before.attempt}",
            )
        asked_us = told.failure.retry_at_us if told.failure is not None else None
        latest_us = max(now_us + tolerance_us, asked_us or 0) + high_us
        if after.due_us > latest_us:
            self.violate(
                at_us,
                after.id,
                f"after {told.code} it is due {after.due_us - latest_us} us too late: the wait is at most "
                f"{high_us} us",
            )

    def _look_at_clock(self, at_us: int) -> None:
        ahead_us = self.known.shared_us(at_us) - at_us
        if self._ahead_us is not None and ahead_us < self._ahead_us - _PUT_BACK_US:
            self._put_back_us = at_us
        self._ahead_us = ahead_us

    def _was_put_back(self, instance_id: str) -> bool:
        """Whether a node may have heard since the attempt began that the clock was put back."""
        began_us = self._began_us.get(instance_id)
        if began_us is None or self._put_back_us is None:
            return False
        return self._put_back_us > began_us - _HEARD_US

    def _check_granted(self, at_us: int, after: Instance, *, told: HistoryRow, policy: RetryPolicy) -> None:
        """A rule may grant less than the policy, by which I3 counts."""
        failures = after.counters.failures
        if told.category != "lost" and failures > policy.max_retry:
            self.violate(
                at_us,
                after.id,
                f"it is retried after {told.code}, its failure {failures}, and what matches "
                f"grants {policy.max_retry} retries",
            )

    def _check_given_up(
        self, at_us: int, before: Instance, after: Instance, *, told: HistoryRow, policy: RetryPolicy
    ) -> None:
        """A retry that the policy grants is not withheld."""
        failure = told.failure
        if failure is None:
            return
        if failure.category == "lost":
            # At most once: then nothing that may have begun is begun again.
            is_used_up = after.counters.lost > policy.max_lost or policy.max_lost == 0
        else:
            is_used_up = after.counters.failures > policy.max_retry
        asked = failure.retry_after_us is not None or failure.retry_at_us is not None
        has_window = policy.window_us is not None and after.counters.window_opened_us is not None
        if not (is_used_up or failure.category == "cancelled" or asked or has_window):
            self.violate(
                at_us,
                after.id,
                f"it was given up after {told.code} with {after.counters.failures} failures and "
                f"{after.counters.lost} losses, and the policy grants more",
            )


def _ran(row: RowCommitted) -> bool:
    return row.before is not None and row.before.state is State.RUNNING


def granted_by(policy: RetryPolicy, failure: Failure | None) -> RetryPolicy | None:
    """The policy with what the first rule that matches the failure sets; None where it must not be retried.

    A loss is stopped by rules and ``no_retry_on``, and ``retry_on`` says nothing about it.
    """
    if failure is None or failure.code == "REFUSED":
        return policy
    for rule in policy.rules:
        if _is_on(rule.match, failure):
            return _merged(policy, rule) if rule.action == "retry" else None
    if _is_on(policy.no_retry_on, failure):
        return None
    is_listed = _is_on((*policy.retry_on, "RETRY_LATER", "ostinato.RetryLater"), failure)
    return policy if not policy.retry_on or failure.category == "lost" or is_listed else None


def _merged(policy: RetryPolicy, rule: RetryRule) -> RetryPolicy:
    said = {name: value for name in _OF_RULES if (value := getattr(rule, name)) is not None}
    if "max_retry" in said:
        said["max_retry"] = min(said["max_retry"], policy.max_retry)
    return msgspec.structs.replace(policy, **said)


def _is_on(patterns: Iterable[str], failure: Failure) -> bool:
    """Whether a pattern is the failure's category, a glob over its code, or a class of its chain."""
    classes = {
        *failure.classes,
        *(name for cause in failure.chain for name in (*cause.classes, cause.class_name)),
    }
    names = classes | {name.rpartition(".")[2] for name in classes}
    return any(
        pattern == failure.category or pattern in names or fnmatchcase(failure.code, pattern)
        for pattern in patterns
    )


def _wait_us(before: Instance, after: Instance, *, told: HistoryRow, policy: RetryPolicy) -> tuple[int, int]:
    """Shortest and longest wait that the policy allows."""
    counters = after.counters
    if told.category == "lost":
        if told.code in _UNCOUNTED:
            count = counters.refusals if told.code == "REFUSED" else counters.hand_backs
            wait_us = 0 if count <= 100 else 30 * SECOND
        else:
            wait_us = 0 if counters.lost <= 1 else min(2 ** (counters.lost - 2), 60) * SECOND
        return wait_us, wait_us
    delay_us, cap_us = _delay_us(policy, counters.failures)
    asked = _asked_us(told.failure)
    if asked is not None:
        return asked, asked + _width_us(policy, delay_us)
    match policy.jitter:
        case "full":
            return 0, delay_us
        case "equal":
            return delay_us // 2, delay_us
        case "decorrelated":
            high_us = max(policy.interval_us, 3 * before.counters.previous_delay_us)
            return min(policy.interval_us, cap_us), min(cap_us, high_us)
        case "proportional":
            spread_us = round(delay_us * policy.jitter_factor)
            return delay_us - spread_us, max(delay_us, min(delay_us + spread_us, cap_us))
        case _:
            return delay_us, delay_us


def _delay_us(policy: RetryPolicy, retry: int) -> tuple[int, int]:
    cap_us = 365 * DAY if policy.max_interval_us is None else min(policy.max_interval_us, 365 * DAY)
    match policy.backoff:
        case "fixed":
            delay_us = policy.interval_us
        case "linear":
            delay_us = policy.interval_us * retry
        case "delays":
            delay_us = policy.delays_us[min(retry, len(policy.delays_us)) - 1]
        case _:
            delay_us = round(policy.interval_us * policy.multiplier ** (retry - 1))
    return min(delay_us, cap_us), cap_us


def _asked_us(failure: Failure | None) -> int | None:
    if failure is None:
        return None
    if failure.retry_at_us is not None:
        return 0
    return failure.retry_after_us


def _width_us(policy: RetryPolicy, delay_us: int) -> int:
    """What jitter may add to a wait that the failure asks for."""
    widths = {"full": delay_us, "equal": delay_us // 2, "decorrelated": policy.interval_us}
    if policy.jitter == "proportional":
        return round(delay_us * policy.jitter_factor)
    return widths.get(policy.jitter, 0)
