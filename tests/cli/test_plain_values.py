"""Values that need no conversion are what Typer would have made of them, and none is loaded that converts."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from support.dev import clean_environment

from ostinato.cli.lazy import COMMANDS
from ostinato.cli.main import app

_TELL = """
import sys
from ostinato.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(sorted({"pydantic", "importlib.metadata"} & set(sys.modules)), file=sys.stderr)
"""
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 7, -7, "", "text", "ß\N{GRINNING FACE}", "half \udc9f"),
    *(
        "0",
        "7",
        "007",
        "-7",
        "+7",
        " 7",
        "7_000",
        "7.0",
        "\N{ARABIC-INDIC DIGIT SEVEN}",
        "9" * 15,
        "9" * 16,
        "9" * 5000,
    ),
    *((), ("a", "b"), ["a"], ("a", "\udc9f"), ("a", 7)),
)


@cache
def _parameters() -> dict[str, tuple[typer.Context, Any]]:
    """One parameter of each kind that our commands have, by its type and bounds."""
    found: dict[str, tuple[typer.Context, Any]] = {}
    root: Any = typer.main.get_command(app)
    for name in COMMANDS:
        top = root.commands[name]
        for command in (top, *getattr(top, "commands", {}).values()):
            context = typer.Context(command)
            for each in command.get_params(context):
                info = each.type_descriptor.parameter_info
                kind = (each.type_descriptor.annotation, info.min, info.max, each.multiple, each.nargs)
                found.setdefault(" ".join(map(str, kind)), (context, each))
    return found


def _outcome(context: typer.Context, parameter: Any, value: Any) -> tuple[object, ...]:
    """What becomes of a value: its type and itself, or how it is refused."""
    try:
        made = parameter.get_runtime_param().coerce(value, param=parameter, ctx=context)
    except typer.BadParameter as error:
        return ("refused", error.format_message())
    return (type(made), made)


@pytest.mark.parametrize("kind", _parameters())
def test_a_value_is_what_typer_would_have_made_of_it(kind: str) -> None:
    context, parameter = _parameters()[kind]
    plain = parameter.get_runtime_param()
    values = [*_VALUES, parameter.default]
    ours = []
    for value in values:
        # Who has had to ask Typer goes on with what Typer has.
        parameter._runtime_param = plain
        ours.append(_outcome(context, parameter, value))
    parameter._runtime_param = None
    assert ours == [_outcome(context, parameter, value) for value in values]


def test_our_commands_have_several_kinds_of_parameters() -> None:
    assert {"<class 'str'>", "<class 'int'>", "<class 'bool'>", "list[str]"} <= {
        kind.partition(" None")[0] for kind in _parameters()
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("cron", "next", "0 6 * * *", "--count", "2", "--json"),
        ("task", "list", "--limit", "5", "--database", "sqlite:///tasks.db"),
        ("instance", "list", "--state", "failed", "--state", "success", "--database", "sqlite:///tasks.db"),
        ("export", "--database", "sqlite:///tasks.db"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_does_not_load_what_converts_values(arguments: tuple[str, ...], tmp_path: Path) -> None:
    made = [sys.executable, "-m", "ostinato.cli", "db", "upgrade", "--database", "sqlite:///tasks.db"]
    for command in (made, [sys.executable, "-c", _TELL, *arguments]):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
