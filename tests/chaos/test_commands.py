"""Commands of the user's do nothing before whoever has to end them knows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.chaos.commands import CommandFailed, CommandRun
from ostinato.core.instants import MINUTE


def test_a_command_that_waits_begins_when_it_is_told_to(tmp_path: Path) -> None:
    run = CommandRun("cat; touch begun; exit 3", folder=tmp_path, waits=True)
    assert not (tmp_path / "begun").exists()
    run.go()
    with pytest.raises(CommandFailed, match="ended with 3"):
        run.finish(MINUTE)
    assert (tmp_path / "begun").exists()


def test_a_command_that_is_never_told_to_ends_without_having_begun(tmp_path: Path) -> None:
    """As when chaos is killed between the start of it and the word to its keeper."""
    run = CommandRun(("touch", "begun"), folder=tmp_path, waits=True)
    stream = run._process.stdin  # pyright: ignore[reportPrivateUsage]  # the kernel closes it with chaos
    assert stream is not None
    stream.close()
    with pytest.raises(CommandFailed, match="ended with 1"):
        run.finish(MINUTE)
    assert not (tmp_path / "begun").exists()


def test_a_command_may_be_ended_before_it_begins(tmp_path: Path) -> None:
    run = CommandRun(("touch", "begun"), folder=tmp_path, waits=True)
    run.kill()
    run.go()
    with pytest.raises(CommandFailed, match="ended with -15"):
        run.finish(MINUTE)
    assert not (tmp_path / "begun").exists()
