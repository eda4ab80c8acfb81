"""Whom a tree's end takes for a stray, at each moment of a new root's exec."""

from __future__ import annotations

import os

import pytest

from ostinato.worker import process_tree
from ostinato.worker.process_tree import MARKER_VARIABLE, Family, Tree, TreeProcess, find_trees

#: What a new root shows in the order in which the kernel sets it: nothing, its command line, its environment.
_SHOWN = (
    {"cmdline": b"", "environ": b""},
    {"cmdline": b"/bin/sh\0", "environ": b""},
    {"cmdline": b"/bin/sh\0", "environ": f"{MARKER_VARIABLE}=worker.attempt\0".encode()},
)


@pytest.mark.parametrize("begins_at", [0, 1, 2])
@pytest.mark.parametrize("looks_between", [1, 2])
def test_a_root_whose_exec_ends_between_two_looks_is_no_stray(
    begins_at: int, looks_between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at it finds it further; `looks_between` of them fall into one moment."""
    root = os.getpid()
    looks = 0
    read = process_tree._read

    def read_while_it_goes_on(pid: int, name: str) -> bytes:
        nonlocal looks
        if pid != root or name not in ("cmdline", "environ"):
            return read(pid, name)
        moment = min(begins_at + looks // looks_between, len(_SHOWN) - 1)
        looks += 1
        return _SHOWN[moment][name]

    monkeypatch.setattr(process_tree, "_read", read_while_it_goes_on)
    ended = Tree(TreeProcess(2**22 + 1, 0), "another.tree")
    found = find_trees([ended], Family(os.getppid(), [ended]))
    assert root not in {process.pid for process in found}
    assert looks > 0
