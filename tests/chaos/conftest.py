"""Processes to break, and the command that breaks them; nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chaos import Chaos, MakeVictim, Victim
from support.leaks import no_leaks


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    with no_leaks():
        yield


@pytest.fixture
def make_victim() -> Iterator[MakeVictim]:
    made: list[Victim] = []

    def make(**options: Any) -> Victim:
        made.append(Victim(**options))
        return made[-1]

    yield make
    for victim in made:
        victim.end()


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    made = Chaos(tmp_path)
    yield made
    made.end()
