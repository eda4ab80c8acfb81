"""The checker of retry budgets refuses what starts beyond a budget, and lets pass what is within it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from support.histories import START_US, Story

from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryBudget, RetryPolicy
from ostinato.core.states import State
from ostinato.simulation.checkers.retry_budgets import RetryBudgets

FAILED_ONCE = Counters(failures=1, window_opened_us=START_US)
#: Five of 50 first attempts, and 5 to 6 by the floor in ten seconds.
BUDGET = RetryBudget(0.1, 30, MINUTE)


def _first(story: Story, name: str) -> None:
    story.submit(name)
    story.assign(name)


def _retry(story: Story, name: str, **fields: object) -> None:
    story.submit(name, state=State.RETRY_WAITING, attempt=1, attempt_id=f"{name}1", counters=FAILED_ONCE)
    story.assign(name, **fields)


def _storm(story: Story, *, firsts: int, retries: int, wait_us: int = 0) -> None:
    story.known_task()
    story.wait(MINUTE)
    for number in range(firsts):
        _first(story, f"f{number}")
    for number in range(retries):
        story.wait(wait_us)
        _retry(story, f"r{number}")


def _of_a_share(story: Story) -> None:
    _storm(story, firsts=50, retries=11)


def _beyond_a_share(story: Story) -> None:
    _storm(story, firsts=50, retries=12)


def _of_the_floor(story: Story) -> None:
    _storm(story, firsts=0, retries=100, wait_us=2 * SECOND)


def _faster_than_the_floor(story: Story) -> None:
    _storm(story, firsts=0, retries=100, wait_us=SECOND)


def _of_starts_long_ago(story: Story) -> None:
    _storm(story, firsts=50, retries=0)
    story.wait(11 * SECOND)
    for number in range(12):
        _retry(story, f"r{number}")


def _written_late(story: Story) -> None:
    """What had been decided before, when there were tokens for it."""
    _storm(story, firsts=50, retries=0)
    decided_us = story.shared_us()
    story.wait(11 * SECOND)
    for number in range(11):
        _retry(story, f"r{number}", assigned_us=decided_us)


def _after_losses_alone(story: Story) -> None:
    story.known_task()
    for number in range(100):
        name = f"l{number}"
        story.submit(name, state=State.RETRY_WAITING, attempt=1, counters=Counters(lost=1))
        story.assign(name)


def _of_a_task_whose_budget_is_gone(story: Story) -> None:
    _storm(story, firsts=0, retries=5)
    without = msgspec.structs.replace(story.task, retry=RetryPolicy())
    story.commit(story.flag(definition=without))  # type: ignore[arg-type]  # any field of the row
    for number in range(100):
        _retry(story, f"x{number}")


@pytest.mark.parametrize(
    ("course", "is_lawful"),
    [
        (_of_a_share, True),
        (_beyond_a_share, False),
        (_of_the_floor, True),
        (_faster_than_the_floor, False),
        (_of_starts_long_ago, False),
        (_written_late, True),
        (_after_losses_alone, True),
        (_of_a_task_whose_budget_is_gone, True),
    ],
)
def test_retries_start_within_the_budget(course: Callable[[Story], None], *, is_lawful: bool) -> None:
    story = Story(RetryBudgets, policy=RetryPolicy(budget=BUDGET))
    course(story)
    assert (story.verdict() == []) is is_lawful
