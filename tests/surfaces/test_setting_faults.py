"""A wrong setting has the code of what is wrong with it, and the field is where it was said."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.surfaces import Surfaces, Told, plain_field, sdk_told, told_by_command
from surfaces.document_faults import BAD_NAMES

from ostinato import App

#: Values that a flag could not be given as, or that a variable cannot hold.
NAMES = {how: name for how, name in BAD_NAMES.items() if "\0" not in name}


@pytest.mark.parametrize("how", NAMES)
def test_a_namespace_that_is_no_name_is_told_with_one_voice(
    surfaces: Surfaces, how: str, tmp_path: Path
) -> None:
    name = NAMES[how]
    told = {
        "--namespace": surfaces.cli_told("task", "list", f"--namespace={name}"),
        "--namespace before": surfaces.cli_told(f"--namespace={name}", "task", "list"),
        "OSTINATO_NAMESPACE": surfaces.cli_told("task", "list", env={"OSTINATO_NAMESPACE": name}),
        "apply": surfaces.cli_told("apply", "-f", str(tmp_path), env={"OSTINATO_NAMESPACE": name}),
        "scheduler": told_by_command("scheduler", env={"OSTINATO_NAMESPACE": name}),
    }
    escaped = "".join(f"\\u{ord(one):04x}" for one in name)
    (tmp_path / "ostinato.toml").write_text(f'namespace = "{escaped}"\n', encoding="utf-8")
    told["ostinato.toml: namespace"] = surfaces.cli_told("task", "list")
    (tmp_path / "ostinato.toml").unlink()
    told["sdk"] = sdk_told(lambda: App("shop", "memory:", namespace=name))
    told["filter"] = surfaces.rest_told("POST", "/instances/cancel", body={"filter": {"namespace": name}})
    first = told["sdk"]
    assert first is not None
    fields = {
        "--namespace before": "--namespace",
        "apply": "OSTINATO_NAMESPACE",
        "scheduler": "OSTINATO_NAMESPACE",
        "sdk": "namespace",
        "filter": "filter.namespace",
    }
    said = {way: one and (one.code, one.field, one.message) for way, one in told.items()}
    assert said == {way: ("INVALID_NAME", fields.get(way, way), first.message) for way in told}


@pytest.mark.parametrize("text", ["5", "-5s", "", "soon", "999999999999999d", "36501d"])
@pytest.mark.parametrize("name", ["drain-timeout", "worker-lease", "retention-success", "retention-other"])
def test_a_duration_that_is_none_is_told_with_one_voice(
    surfaces: Surfaces, name: str, text: str, tmp_path: Path
) -> None:
    key = name.replace("-", "_")
    variable = f"OSTINATO_{key.upper()}"
    told: dict[str, Told | None] = {
        variable: told_by_command("scheduler", env={variable: text}),
    }
    (tmp_path / "ostinato.toml").write_text(f'{key} = "{text}"\n', encoding="utf-8")
    told[f"ostinato.toml: {key}"] = told_by_command("scheduler")
    first = told[variable]
    assert first is not None
    said = {way: one and (one.code, one.field, one.message) for way, one in told.items()}
    assert said == {way: ("INVALID_DURATION", way, first.message) for way in told}
    # A task's own duration is refused with the same code.
    document = {"name": "t", "shell": {"command": "true"}, "grace": text}
    task = surfaces.rest_told("PUT", "/namespaces/default/tasks/t", body=document)
    assert task is not None
    assert (task.code, plain_field(task.field)) == ("INVALID_DURATION", "grace")
