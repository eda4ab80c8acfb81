"""Types of the fixtures that call the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Protocol

from typer.testing import Result


class Invoke(Protocol):
    """Runs a command in this process."""

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> Result: ...


class Execute(Protocol):
    """Runs a command as a process of its own."""

    def __call__(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]: ...
