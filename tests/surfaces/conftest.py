"""One node for all tests of a file, in an empty environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.surfaces import Surfaces, running_surfaces


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surfaces]:
    with running_surfaces(tmp_path_factory.mktemp("surfaces")) as surfaces:
        yield surfaces


@pytest.fixture
def surfaces(node: Surfaces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Surfaces:
    """The node, asked from an empty folder and without any setting in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OSTINATO_")]:
        monkeypatch.delenv(name)
    return node
