"""What user code does in a run: how long it takes and how it ends, drawn for each attempt from the seed.

The same attempt of the same seed always does the same, wherever and whenever it is executed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from ostinato.core.definition import PythonSpec, TaskDefinition
from ostinato.core.failure.signals import RetryLater, TaskError
from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.core.retry.policy import RetryBudget, RetryPolicy, RetryRule, validate_policy
from ostinato.core.retry.policy_model import Jitter
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger, Trigger
from ostinato.sdk.context import Context
from ostinato.simulation.executions import work_for

#: An exception that a task raises, made anew each time.
Raises = Callable[[], Exception]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a run: its definition, and how its code behaves."""

    definition: TaskDefinition
    run_us_min: int
    run_us_max: int
    failure_share: float
    failures: tuple[Raises, ...]

    @property
    def name(self) -> str:
        return self.definition.name

    def function(self, seed: int) -> Callable[..., object]:
        """The task's code: it works for a while, then raises, or returns the id of its own attempt (I6)."""

        async def body(context: Context) -> str:
            rng = Random(f"behaviour {seed} {context.instance_id} {context.attempt}")
            run_us = rng.randrange(self.run_us_min, self.run_us_max + 1)
            fails = rng.random() < self.failure_share
            await work_for(run_us)
            if fails:
                raise rng.choice(self.failures)()
            return context.attempt_id

        return body


_FAILURES: tuple[Raises, ...] = (
    lambda: ConnectionResetError(errno.ECONNRESET, "reset by the simulation"),
    lambda: MemoryError("nothing left"),
    lambda: TaskError("as the task says", code="MY_OWN_CODE"),
)
#: What rules match; none of them covers another, so that each may come first.
_PATTERNS: tuple[tuple[str, ...], ...] = (
    ("ConnectionResetError",),
    ("MY_OWN_*", "RETRY_LATER"),
    ("resource",),
    ("permanent", "TIMEOUT"),
)
_RUNS = (
    (0, 50),
    (MILLISECOND, 200 * MILLISECOND),
    (100 * MILLISECOND, 3 * SECOND),
    (SECOND, 12 * SECOND),
    (5 * SECOND, 90 * SECOND),
)


#: In a run of hours what waits ends by itself after so long, so that a cluster that is down a lot catches up.
_QUEUE_TIMEOUT_US = 5 * MINUTE
#: Of tasks that fire, how many have shards.
_SHARDED_SHARE = 0.1
#: There triggers are so many times more seldom, and cron expressions those of people.
_SLOWER = 10
_SLOW_CRONS = {
    "* * * * *": "* * * * *",
    "*/5 * * * * *": "*/2 * * * *",
    "*/20 * * * * *": "*/5 * * * *",
    "30 * * * * *": "30 * * * * *",
}


def profiles_of(
    seed: int,
    *,
    count: int,
    start_us: int,
    labels: Sequence[dict[str, str]] = ({},),
    is_long: bool = False,
    budget_share: float = 0.0,
) -> list[Profile]:
    """The tasks of a seed.

    `start_us`: shared time at which the run begins; `labels`: of its workers; `is_long`: it takes hours;
    `budget_share`: so many of them have a retry budget.
    """
    rng = Random(f"profiles {seed}")
    plain = [_profile(rng, f"t{number}", start_us=start_us) for number in range(count)]
    profiles = [
        _particular(profile, Random(f"particular {seed} {profile.name}"), labels=labels) for profile in plain
    ]
    profiles = [_sharded(profile, Random(f"shards {seed} {profile.name}")) for profile in profiles]
    profiles = [
        _with_budget(profile, Random(f"budget {seed} {profile.name}"), share=budget_share)
        for profile in profiles
    ]
    return [_slower(profile) for profile in profiles] if is_long else profiles


def _sharded(profile: Profile, rng: Random) -> Profile:
    """A few of the tasks that fire have shards."""
    definition = profile.definition
    if not definition.triggers or rng.random() >= _SHARDED_SHARE:
        return profile
    return msgspec.structs.replace(
        profile, definition=msgspec.structs.replace(definition, shards=rng.randrange(2, 5))
    )


def _slower(profile: Profile) -> Profile:
    definition = profile.definition
    slower = msgspec.structs.replace(
        definition,
        triggers=tuple(map(_slower_trigger, definition.triggers)),
        queue_timeout_us=definition.queue_timeout_us or _QUEUE_TIMEOUT_US,
    )
    return msgspec.structs.replace(profile, definition=slower)


def _slower_trigger(trigger: Trigger) -> Trigger:
    match trigger:
        case IntervalTrigger():
            return msgspec.structs.replace(trigger, every_us=_SLOWER * trigger.every_us)
        case CronTrigger():
            return msgspec.structs.replace(trigger, cron=_SLOW_CRONS[trigger.cron])
        case _:
            return trigger


def _particular(profile: Profile, rng: Random, *, labels: Sequence[dict[str, str]]) -> Profile:
    """The same, perhaps with lists and rules of what is retried, and with labels that some worker carries.

    All of it is drawn apart, so that a seed keeps what it had.
    """
    definition = profile.definition
    if rng.random() < 0.3:
        definition = msgspec.structs.replace(definition, labels=rng.choice(labels))
    if rng.random() < 0.4:
        retry = _with_patterns(definition.retry, rng)
        validate_policy(retry)
        definition = msgspec.structs.replace(definition, retry=retry)
    return msgspec.structs.replace(profile, definition=definition)


def _with_budget(profile: Profile, rng: Random, *, share: float) -> Profile:
    """The same, perhaps with a retry budget; drawn apart. Each has a floor, so that all that waits ends."""
    if rng.random() >= share:
        return profile
    count, period_us = rng.choice(((1, SECOND), (30, MINUTE), (12, MINUTE)))
    budget = RetryBudget(rng.choice((0.0, 0.1, 0.5)), count, period_us)
    retry = msgspec.structs.replace(profile.definition.retry, budget=budget)
    validate_policy(retry)
    definition = msgspec.structs.replace(profile.definition, retry=retry)
    return msgspec.structs.replace(profile, definition=definition)


def _with_patterns(policy: RetryPolicy, rng: Random) -> RetryPolicy:
    """Lists, or rules with schedules of their own, about what tasks of a run really end with."""
    if rng.random() < 0.3:
        return msgspec.structs.replace(
            policy,
            retry_on=rng.choice((("ConnectionError", "MY_OWN_CODE"), ("E*", "TIMEOUT"), ("transient",))),
            no_retry_on=rng.choice(((), ("ostinato.Permanent",), ("MemoryError",), ("WORKER_LOST",))),
        )
    patterns = rng.sample(_PATTERNS, rng.randrange(1, 4))
    return msgspec.structs.replace(policy, rules=tuple(_rule(policy, rng, match=match) for match in patterns))


def _rule(policy: RetryPolicy, rng: Random, *, match: tuple[str, ...]) -> RetryRule:
    if rng.random() < 0.3:
        return RetryRule(match, action="fail")
    max_retry = rng.choice((None, None, rng.randrange(policy.max_retry + 1)))
    if rng.random() < 0.4:
        delays_us = tuple(rng.randrange(6) * SECOND for _ in range(rng.randrange(1, 4)))
        # Decorrelated draws from the interval, which a list of delays does not have.
        jitter: Jitter | None = "none" if policy.jitter == "decorrelated" else None
        return RetryRule(match, backoff="delays", delays_us=delays_us, jitter=jitter, max_retry=max_retry)
    return RetryRule(
        match,
        backoff=rng.choice(("fixed", "linear", "exponential")),
        interval_us=rng.choice((0, 300 * MILLISECOND, 3 * SECOND)),
        max_interval_us=rng.choice((None, 8 * SECOND)),
        max_retry=max_retry,
    )


def _profile(rng: Random, name: str, *, start_us: int) -> Profile:
    run_us_min, run_us_max = rng.choices(_RUNS, weights=(1, 3, 4, 3, 2))[0]
    failures = [*_FAILURES]
    if rng.random() < 0.3:
        failures.append(lambda: PermissionError(errno.EACCES, "not allowed"))
    if rng.random() < 0.3:
        after_s = rng.randrange(1, 20)
        failures.append(lambda: RetryLater("not now", after=after_s))
    timeout_us = None if rng.random() < 0.6 else rng.choice((2, 10, 60)) * SECOND
    definition = TaskDefinition(
        namespace="default",
        name=name,
        executor=PythonSpec(f"simulated:{name}", is_async=rng.random() < 0.5),
        triggers=_triggers(rng, start_us),
        retry=_policy(rng),
        timeout_us=timeout_us,
        grace_us=rng.choice((0, SECOND, 5 * SECOND)),
        queue_timeout_us=rng.choice((None, None, None, 10 * SECOND, 60 * SECOND)),
        overlap=rng.choice((None, "allow", "allow", "forbid", "queue", "replace")),
        queue_bound=rng.choice((2, 100)),
        priority=rng.randrange(10),
        exclusive="relaxed" if rng.random() < 0.3 else "strict",
    )
    return Profile(
        definition=definition,
        run_us_min=run_us_min,
        run_us_max=run_us_max,
        failure_share=rng.choice((0.0, 0.1, 0.4, 0.9)),
        failures=tuple(failures),
    )


def _triggers(rng: Random, start_us: int) -> tuple[Trigger, ...]:
    misfire = rng.choice(("fire_once", "fire_all", "fire_all", "skip"))
    bound = rng.choice((3, 100))
    draw = rng.random()
    if draw < 0.35:
        return (
            IntervalTrigger(
                every_us=rng.choice((2, 5, 10, 30)) * SECOND, misfire=misfire, misfire_bound=bound
            ),
        )
    if draw < 0.5:
        cron = rng.choice(("* * * * *", "*/5 * * * * *", "*/20 * * * * *", "30 * * * * *"))
        return (CronTrigger(cron=cron, misfire=misfire, misfire_bound=bound),)
    if draw < 0.6:
        at_us = start_us + rng.randrange(5, 90) * SECOND
        return (DateTrigger(at_us=at_us, misfire=misfire),)
    return ()


def _policy(rng: Random) -> RetryPolicy:
    backoff = rng.choice(("fixed", "linear", "exponential", "delays"))
    jitter = rng.choice(("none", "none", "full", "equal", "decorrelated", "proportional"))
    if backoff == "delays" and jitter == "decorrelated":
        # It draws from the interval, which a list of delays does not have.
        jitter = "none"
    delays_us = tuple(rng.randrange(8) * SECOND for _ in range(rng.randrange(1, 4)))
    return RetryPolicy(
        backoff=backoff,  # type: ignore[arg-type]  # drawn of its words
        interval_us=rng.choice((0, 500 * MILLISECOND, 2 * SECOND, 5 * SECOND)),
        multiplier=rng.choice((1.0, 1.5, 2.0, 3.0)),
        delays_us=delays_us if backoff == "delays" else (),
        max_interval_us=None if backoff != "exponential" else 20 * SECOND,
        jitter=jitter,  # type: ignore[arg-type]  # drawn of its words
        jitter_factor=rng.choice((0.1, 0.5)) if jitter == "proportional" else 0.0,
        max_retry=rng.choice((0, 1, 2, 3, 5)),
        max_lost=rng.choice((0, 1, 3, 10)),
        window_us=rng.choice((None, None, None, 10 * SECOND, MINUTE)),
    )
