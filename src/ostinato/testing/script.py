"""What a test wants of attempts: which fail and how, which hang, and what tasks result in without running."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import msgspec

from ostinato.core.definition import TaskRef
from ostinato.core.failure.codes import is_valid_code
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.errors import UserError
from ostinato.testing.driver import Driver
from ostinato.testing.inline_executor import EndsWith
from ostinato.testing.real_sleep import refusing_sleeps
from ostinato.wire.messages import Assignment

#: What an attempt may be made to fail with: an exception or its class, a failure code, an HTTP status.
FailWith: TypeAlias = BaseException | type[BaseException] | str | int

_MESSAGE = "made to fail by the test"
#: Attempts of one instance, or instances of which each was submitted by the one before, and all that tasks
#: have submitted, at one instant: an honest test has far less, and time would never pass.
CHAIN_COUNT_MAX = 1_000
CHAINED_COUNT_MAX = 100_000
#: Whose attempt the present code runs in; unset outside of attempts.
_instance: ContextVar[str] = ContextVar("ostinato_testing_instance")


class _Planned(msgspec.Struct, frozen=True):
    """The end of chosen attempts of a task; without numbers of all. Neither failure nor error: it hangs."""

    attempts: frozenset[int] | None
    failure: Failure | None = None
    error: BaseException | type[BaseException] | None = None


class Script:
    """Stands between attempts and functions: the ``Conduct`` of the kit's executors."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        #: By task, the newest first.
        self._planned: dict[TaskRef, list[_Planned]] = {}
        self._stubs: dict[TaskRef, object] = {}
        #: By instance: the exception that its newest attempt raised.
        self.raised: dict[str, BaseException] = {}
        #: By instance that a task has submitted at `_chains_us`: how many led to it, each by the one before.
        self._chains: dict[str, int] = {}
        self._chains_us = 0
        #: By instance: its attempts that have begun at `_attempts_s`, on the driver's clock.
        self._attempts: Counter[str] = Counter()
        self._attempts_s = 0.0

    def fail(
        self,
        ref: TaskRef,
        failure: FailWith,
        *,
        attempts: Collection[int] | None,
        retry_after_us: int | None,
    ) -> None:
        """Plan the failure of attempts. Raises ``INVALID_VALUE`` naming the argument."""
        numbers = _numbers(attempts)
        if isinstance(failure, str | int):
            made = safe_failure(_code(failure), _MESSAGE, retry_after_us=retry_after_us)
            self._plan(ref, _Planned(numbers, failure=made))
            return
        is_class = isinstance(failure, type) and issubclass(failure, BaseException)
        if not is_class and not isinstance(failure, BaseException):
            raise UserError(
                "INVALID_VALUE",
                f"{failure!r} is neither an exception, nor a failure code, nor an HTTP status",
                field="failure",
            )
        if retry_after_us is not None:
            raise UserError(
                "INVALID_VALUE",
                "goes with a code or a status; an exception says it by itself",
                field="retry_after",
                hint="give RetryLater(after=…)",
            )
        self._plan(ref, _Planned(numbers, error=failure))

    def hang(self, ref: TaskRef, *, attempts: Collection[int] | None) -> None:
        """Plan attempts that end only when they are ended. Raises ``INVALID_VALUE``."""
        self._plan(ref, _Planned(_numbers(attempts)))

    def heal(self, ref: TaskRef) -> None:
        """Take back what was planned for a task."""
        self._planned.pop(ref, None)

    def stub(self, ref: TaskRef, value: object) -> None:
        """Let a task result in `value`, or in what that returns when it is called with the payload."""
        self._stubs[ref] = value

    def report(self, fault: BaseException) -> None:
        """Tell the test, whatever it is doing, at the end of its present call."""
        self._driver.faults.append(fault)

    def chain_length(self, *, now_us: int) -> int:
        """How many instances, each submitted by the one before at this very instant, led to this call.

        Raises ``INVALID_VALUE`` where there is no end to it; the test hears of that, whatever the task makes
        of it.
        """
        if now_us != self._chains_us:
            self._chains, self._chains_us = {}, now_us
        length = self._chains.get(_instance.get(""), 0)
        if length >= CHAIN_COUNT_MAX or len(self._chains) >= CHAINED_COUNT_MAX:
            refused = UserError(
                "INVALID_VALUE",
                f"tasks have submitted {len(self._chains)} instances at one instant, and no time has passed",
                subject=_instance.get(""),
                field="submit",
                hint="let it end, submit with a delay, or stub() a task that submits itself",
            )
            self.report(refused)
            raise refused
        return length

    def note_chain(self, instance_ids: Sequence[str], length: int) -> None:
        """So many have led to these, which were submitted just now."""
        # What a test submits itself begins one, and is not kept.
        if _instance.get(""):
            self._chains.update(dict.fromkeys(instance_ids, length))

    def _plan(self, ref: TaskRef, planned: _Planned) -> None:
        self._planned.setdefault(ref, []).insert(0, planned)

    # ── in the attempt ────────────────────────────────────────────────────────────────────────────────

    async def conduct(self, assignment: Assignment, function: partial[object]) -> object:
        """End an attempt as planned, or else do what its task does."""
        self.raised.pop(assignment.instance_id, None)
        token = _instance.set(assignment.instance_id)
        try:
            with refusing_sleeps(lambda seconds: self._refusal(assignment.ref, seconds)):
                return await self._act(assignment, function)
        except (EndsWith, asyncio.CancelledError):
            raise
        except BaseException as error:
            self.raised[assignment.instance_id] = error
            if not isinstance(error, Exception | SystemExit | GeneratorExit):
                # What pytest ends a test with is meant for the test, not for the task.
                self.report(error)
            raise
        finally:
            _instance.reset(token)

    def _act(self, assignment: Assignment, function: Callable[[], object]) -> Awaitable[object]:
        if self._is_endless(assignment):
            return _end(_Planned(None))
        for planned in self._planned.get(assignment.ref, ()):
            if planned.attempts is None or assignment.attempt in planned.attempts:
                return _end(planned)
        if assignment.ref in self._stubs:
            function = _stubbed(self._stubs[assignment.ref], assignment.payload)
        if inspect.iscoroutinefunction(function):
            coroutine: Awaitable[object] = function()
            return coroutine
        return self._driver.call_between_turns(function)

    def _is_endless(self, assignment: Assignment) -> bool:
        """Whether an instance is retried at one instant without end; the test hears of that later."""
        now_s = self._driver.loop.time()
        if now_s != self._attempts_s:
            self._attempts, self._attempts_s = Counter(), now_s
        self._attempts[assignment.instance_id] += 1
        if self._attempts[assignment.instance_id] <= CHAIN_COUNT_MAX:
            return False
        self.report(
            UserError(
                "INVALID_VALUE",
                f"task {assignment.ref} was retried {CHAIN_COUNT_MAX} times at one instant",
                subject=assignment.instance_id,
                field="retry",
                hint="let its policy wait between retries, or allow fewer of them",
            )
        )
        return True

    def _refusal(self, ref: TaskRef, seconds: float) -> UserError:
        """The error of a real sleep; the test hears of it, whatever the task makes of it."""
        refused = UserError(
            "INVALID_VALUE",
            f"task {ref} called time.sleep({seconds:g}), in which no virtual time passes",
            subject=str(ref),
            field="time.sleep",
            hint="await asyncio.sleep in an async task, hand a wait into the task, or let the attempt hang()",
        )
        self.report(refused)
        return refused

    def runs_nowhere(self, ref: TaskRef) -> Callable[..., object]:
        """The function of a shell, http or container task, which has none here."""

        def refuse(**_: object) -> object:
            refused = UserError(
                "INVALID_VALUE",
                f"task {ref} is no Python function, and a test runs nothing else",
                subject=str(ref),
                field="task",
                hint="say what comes of it: cluster.stub(task, value) or cluster.fail(task, failure)",
            )
            self.report(refused)
            # Not retried: the test hears of it once.
            raise EndsWith(safe_failure("EXECUTOR_ERROR", str(refused), category="permanent"))

        return refuse


async def _end(planned: _Planned) -> object:
    if planned.failure is not None:
        raise EndsWith(planned.failure)
    if planned.error is not None:
        # One object may be raised many times: what it remembers of the last time is dropped.
        raise (
            planned.error.with_traceback(None) if isinstance(planned.error, BaseException) else planned.error
        )
    return await asyncio.get_running_loop().create_future()


def _stubbed(value: object, payload: bytes) -> Callable[[], object]:
    if callable(value):
        return partial(value, **msgspec.json.decode(payload, type=dict[str, Any]))
    return lambda: value


def _code(failure: str | int) -> str:
    if isinstance(failure, int):
        if isinstance(failure, bool) or not 100 <= failure <= 599:
            raise UserError("INVALID_VALUE", f"{failure!r} is no HTTP status", field="failure")
        return f"HTTP_{failure}"
    if not is_valid_code(failure):
        raise UserError(
            "INVALID_VALUE",
            f"{failure!r} is not a failure code",
            field="failure",
            hint="codes are capitals, digits and underscores; for a text give an exception",
        )
    return failure


def _numbers(attempts: Collection[int] | None) -> frozenset[int] | None:
    if attempts is None:
        return None
    if isinstance(attempts, int):
        raise UserError(
            "INVALID_VALUE",
            f"{attempts} may mean one attempt or several",
            field="attempts",
            hint=f"write ({attempts},) or range(1, {attempts + 1})",
        )
    numbers = frozenset(attempts)
    if not all(isinstance(number, int) and number >= 1 for number in numbers):
        raise UserError("INVALID_VALUE", "attempts are numbered from 1", field="attempts")
    return numbers
