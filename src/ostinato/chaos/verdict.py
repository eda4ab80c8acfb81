"""What was violated: by what the history tells of the workload, and by what the witness saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ostinato.chaos.scenario import Workload
from ostinato.chaos.witness import Execution, overlaps
from ostinato.core.instants import SECOND, format_duration
from ostinato.core.states import TERMINAL_STATES, State

if TYPE_CHECKING:
    from ostinato.control.explain import AttemptStory, Story


class Outcome(NamedTuple):
    """What became of one accepted submission.

    `story` is None if there is no instance of that id or, then `error` says why, if nobody could be asked.
    """

    instance_id: str
    state: State | None
    story: Story | None
    error: str = ""


class Violation(msgspec.Struct, frozen=True):
    """Something that should hold and did not.

    `rule` is an invariant (``I1`` single execution, ``I2`` nothing lost, ``I3`` bounded attempts, ``I6``
    results count once, ``I9`` nothing hangs), or one of ``success``, ``accepted``, ``recovery``,
    ``restored``, ``carried out``.
    """

    rule: str
    what: str


class WorkloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the workload, in numbers."""

    accepted: int
    #: Submissions that had no answer to the end; whether they were accepted nobody can tell.
    unanswered: int
    #: Calls that had no answer and were repeated.
    repeated: int
    states: dict[str, int]
    attempts: int
    #: Attempts that failed by themselves, and those that were lost.
    failures: int
    lost: int


def workload_report(outcomes: Sequence[Outcome], *, unanswered: int, repeated: int) -> WorkloadReport:
    """The numbers of a workload that was waited for."""
    stories = [outcome.story for outcome in outcomes if outcome.story is not None]
    attempts = [attempt for story in stories for attempt in story.attempts]
    return WorkloadReport(
        accepted=len(outcomes),
        unanswered=unanswered,
        repeated=repeated,
        states=dict(Counter(str(outcome.state or "missing") for outcome in outcomes)),
        attempts=len(attempts),
        failures=sum(story.failures for story in stories),
        lost=sum(story.lost for story in stories),
    )


def judge_workload(
    outcomes: Sequence[Outcome], workload: Workload, *, last_fault_us: int, now_us: int
) -> Iterator[Violation]:
    """What the history tells: lost, beyond the policy, twice a success, hanging.

    `last_fault_us` and `now_us` are wall clock instants: the end of the last fault, and the end of the wait.
    """
    for outcome in outcomes:
        story = outcome.story
        if story is None:
            why = f"nobody could be asked: {outcome.error}" if outcome.error else "there is no such instance"
            yield Violation("I2", f"{outcome.instance_id}: accepted, and {why}")
            continue
        yield from _state_of(story, workload)
        yield from _attempts_of(story)
        yield from _hanging(story, workload, last_fault_us=last_fault_us, now_us=now_us)


def judge_witness(
    executions: Mapping[str, list[Execution]], *, outcomes: Sequence[Outcome]
) -> Iterator[Violation]:
    """What the witness tells: executions at the same time, and successes that nobody saw end."""
    for sentence in overlaps(executions):
        yield Violation("I1", sentence)
    for outcome in outcomes:
        ran = executions.get(outcome.instance_id, [])
        if outcome.state is State.SUCCESS and not any(execution.has_ended for execution in ran):
            yield Violation("I6", f"{outcome.instance_id}: success, and the witness saw none of it end")


def _state_of(story: Story, workload: Workload) -> Iterator[Violation]:
    if story.state not in TERMINAL_STATES:
        waited = format_duration(workload.settle_us)
        why = story.waits or story.next
        yield Violation("I2", f"{story.id}: {story.state} after {waited}: {why}")
    elif story.state is not State.SUCCESS:
        yield Violation("success", f"{story.id}: {story.state}: {story.reason or story.next}")


def _attempts_of(story: Story) -> Iterator[Violation]:
    if story.max_retry is not None and story.failures > story.max_retry + 1:
        yield Violation("I3", f"{story.id}: failed {story.failures} times, max_retry is {story.max_retry}")
    if story.max_lost is not None and story.lost > story.max_lost + 1:
        yield Violation("I3", f"{story.id}: lost {story.lost} times, max_lost is {story.max_lost}")
    ended_well = [attempt.number for attempt in story.attempts if attempt.ended == "success"]
    if len(ended_well) > 1:
        yield Violation("I6", f"{story.id}: attempts {ended_well} ended in success")


def _hanging(story: Story, workload: Workload, *, last_fault_us: int, now_us: int) -> Iterator[Violation]:
    """I9: an attempt from before the last fault's end that went on for too long after it."""
    bound_us = last_fault_us + workload.hang_bound_us
    for attempt in story.attempts:
        ended_us = attempt.ended_us or now_us
        if ended_us > bound_us and _began_before(attempt, last_fault_us):
            late = format_duration((ended_us - last_fault_us) // SECOND * SECOND)
            bound = format_duration(workload.hang_bound_us)
            what = (
                f"{story.id}: attempt {attempt.number} was running {late} after the last fault, bound {bound}"
            )
            yield Violation("I9", what)


def _began_before(attempt: AttemptStory, instant_us: int) -> bool:
    began_us = attempt.assigned_us if attempt.started_us is None else attempt.started_us
    if began_us is None:
        # Nobody knows when a lost attempt began; after the last fault nothing is lost any more.
        return attempt.ended == "lost"
    return began_us <= instant_us
