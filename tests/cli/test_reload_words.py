"""What ``dev`` watches, and in which words it tells what has changed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ostinato import App, Retry, every
from ostinato.cli.reload import Teller, changed_fields, is_code_file, is_document
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.errors import UserError


def _shell(name: str = "backup", **options: object) -> TaskDefinition:
    app = App("words")
    app.shell(name, "true", **options)  # type: ignore[arg-type]  # options of all kinds, by name
    return app.definitions()[0]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"timeout": "5m"}, {"timeout": ("1h", "5m")}),
        ({"timeout": None}, {}, {"timeout": ("none", "1h")}),
        (
            {"retry": Retry.fixed("1s", max_retry=3)},
            {"retry": Retry.fixed("1s", max_retry=5)},
            {"retry.max_retry": ("3", "5")},
        ),
        ({}, {"labels": {"zone": "eu"}}, {"labels.zone": ("none", "eu")}),
        ({}, {"priority": 9}, {"priority": ("5", "9")}),
        ({"payload": {}}, {}, {}),
        ({"env": {"A": "1"}}, {"env": {"A": "2"}}, {"shell.env.A": ("1", "2")}),
        ({}, {"description": "x" * 100}, {"description": ("none", "x" * 60 + "…")}),
    ],
    ids=str,
)
def test_changed_fields_have_the_names_of_a_document_and_values_in_words(
    before: dict[str, object], after: dict[str, object], told: dict[str, tuple[str, str]]
) -> None:
    assert changed_fields(_shell(**before), _shell(**after)) == told


def test_triggers_and_another_executor_are_told() -> None:
    told = changed_fields(_shell(), _shell(triggers=[every("5m")]))
    assert set(told) == {"triggers"}
    assert told["triggers"][0] == "none"
    assert "5m" in told["triggers"][1]
    app = App("words")
    app.http("backup", "GET", url="http://localhost/")
    assert changed_fields(_shell(), app.definitions()[0])["shell.command"] == ("true", "none")


def test_every_field_of_a_definition_is_compared() -> None:
    one = _shell()
    for field in TaskDefinition.__struct_fields__:
        if field in ("namespace", "name", "executor", "retry"):
            continue
        other = {
            "triggers": _shell(triggers=[every("5m")]).triggers,
            "payload": msgspec.Raw(b'{"a":1}'),
            "labels": {"a": "b"},
        }.get(field, 7)
        assert changed_fields(one, msgspec.structs.replace(one, **{field: other})), field


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("shop.py", True),
        ("deep/er/tasks.py", True),
        ("shop.pyc", False),
        ("__pycache__/shop.py", False),
        (".git/hooks/x.py", False),
        (".venv/lib/x.py", False),
        ("node_modules/x.py", False),
        ("data/workers/1/attempts/2/script.py", False),
        (".#shop.py", False),
        ("flycheck_shop.py", False),
        ("ostinato.db-wal", False),
        ("tasks.yaml", False),
    ],
)
def test_only_code_of_the_app_is_code(path: str, expected: bool) -> None:
    # Hidden folders above the app's own say nothing about it.
    home = Path("/home/.venv/build/app")
    assert is_code_file(home / path, folders=[home], data_dir=home / "data") is expected


def test_json_says_the_same_and_errors_have_their_codes(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(in_json=True, namespace="default")
    ref, gone = TaskRef("default", "backup"), TaskRef("default", "gone")
    teller.reloaded({ref: _shell(), gone: _shell("gone")}, {ref: _shell(timeout="5m")}, code=True)
    assert json.loads(capsys.readouterr().out) == {
        "reloaded": {
            "added": [],
            "changed": {"default/backup": {"timeout": ["1h", "5m"]}},
            "removed": ["default/gone"],
        }
    }
    teller.refused(UserError("INVALID_APP", "does not import"), tracebacks=["one\ntwo"])
    told = capsys.readouterr()
    assert json.loads(told.out) == {"refused": [{"code": "INVALID_APP", "message": "does not import"}]}
    assert told.err.splitlines()[1:] == ["  INVALID_APP: does not import", "  one", "  two"]


def test_code_is_said_to_be_new_only_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(in_json=False, namespace="default")
    declared = {TaskRef("default", "backup"): _shell()}
    teller.reloaded(declared, declared, code=True)
    teller.reloaded(declared, declared, code=False)
    assert capsys.readouterr().out.splitlines() == [
        "reloaded: code only, every task is declared as before",
        "reloaded: nothing has changed, every task is declared as before",
    ]


def test_import_that_takes_long_is_told_with_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    Teller(in_json=False, namespace="default").importing("shop", limit_us=120_000_000)
    assert capsys.readouterr().err == "shop is still being imported; that is given up after 2m\n"


def test_nothing_that_a_terminal_would_obey_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(in_json=False, namespace="default")
    ref = TaskRef("default", "backup")
    teller.reloaded(
        {ref: _shell()}, {ref: msgspec.structs.replace(_shell(), description="\x1b[31mred")}, code=True
    )
    teller.refused(UserError("INVALID_APP", "\x1b[2J"), tracebacks=["\x1b[1m"])
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "\\x1b[31mred" in told.out


def test_folder_is_documents_unless_it_is_the_package_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("tasks", "shop"):
        Path(folder).mkdir()
    Path("shop/__init__.py").touch()
    for name in ("tasks", "tasks/", "./tasks", "shop/", "tasks.yaml", "other.YML"):
        assert is_document(name), name
    for name in ("shop", "shop:app", "shop.py", "nothing"):
        assert not is_document(name), name
