"""Each house rule is shown to fail on a few lines that break it, and to hold on a few that do not."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from house.project import Project
from house.test_rules import RULES, Rule

_ERRORS = 'CODES: dict[str, int] = {"GONE": 1, "LATE": 2}\n'


class Canary(NamedTuple):
    """Files that break a rule and the name that it must complain of, beside files that keep it."""

    name: str
    bad: dict[str, str]
    good: dict[str, str]


def _source(text: str) -> dict[str, str]:
    return {"src/ostinato/example.py": text}


def _test(text: str) -> dict[str, str]:
    return {"tests/test_example.py": text}


_LATER = "TO" + "DO"
_MACHINE = "/ho" + "me/anna/project"
_SILENT = "# no" + "qa"
_IGNORED = "# type: ig" + "nore"

CANARIES: dict[str, list[Canary]] = {
    "module_docstrings": [
        Canary("module", _source("x = 1\n"), _source('"""Numbers."""\n\nx = 1\n')),
        Canary("module", _test("# only a comment\n"), {"src/ostinato/core/__init__.py": ""}),
    ],
    "file_length": [Canary("module", _source("x = 1\n" * 501), _source("x = 1\n" * 500))],
    "function_length": [
        Canary("f", _source("def f():\n" + "    x = 1\n" * 60), _source("def f():\n" + "    x = 1\n" * 59)),
        Canary("C.f", _source("class C:\n    async def f(self):\n" + "        x = 1\n" * 60), _source("")),
    ],
    "positional_parameters": [
        Canary("f", _source("def f(a, b, c): ...\n"), _source("def f(a, b, *, c): ...\n")),
        Canary(
            "C.f",
            _source("class C:\n    def f(self, a, b, c): ...\n"),
            _source("class C:\n    def f(self, a, b): ...\n"),
        ),
        Canary(
            "C.__init__",
            _source("class C:\n    def __init__(self, a, b, c): ...\n"),
            _test("def test_x(a, b, c): ...\n"),
        ),
        Canary(
            "f",
            _source("def f(a, b, /, c): ...\n"),
            _source("class C:\n    def __exit__(self, a, b, c): ...\n"),
        ),
    ],
    "boolean_parameters": [
        Canary("f", _source("def f(a: bool): ...\n"), _source("def f(*, a: bool): ...\n")),
        Canary(
            "C.f",
            _source("class C:\n    def f(self, a=True): ...\n"),
            _source("class C:\n    def f(self, a=1): ...\n"),
        ),
    ],
    "leftovers": [Canary(_LATER, _source(f"x = 1  # {_LATER} later\n"), _source("todos = 1\n"))],
    "swallowed_errors": [
        Canary(
            "except",
            _source("try:\n    f()\nexcept Exception:\n    pass  # never mind\n"),
            _source("try:\n    f()\nexcept Exception as error:\n    report(error)\n"),
        ),
        Canary(
            "except",
            _source("try:\n    f()\nexcept:\n    x = 1\n"),
            _source("try:\n    x = f()\nexcept Exception:  # it has no value then\n    x = 0\n"),
        ),
        Canary(
            "except",
            _source("try:\n    f()\nexcept KeyError:\n    pass\n"),
            _source("try:\n    f()\nexcept KeyError:\n    pass  # it has ended meanwhile\n"),
        ),
        Canary(
            "suppress",
            _source("with suppress(Exception):\n    f()\n"),
            _source("with suppress(OSError):\n    f()\n"),
        ),
    ],
    "banned_calls": [
        Canary("time.sleep", _source("import time\ntime.sleep(1)\n"), _test("import time\ntime.sleep(1)\n")),
        Canary(
            "time.sleep",
            _source("from time import sleep\nsleep(1)\n"),
            _source("import time\ntime.gmtime(0)\n"),
        ),
        Canary("time.time", _source("import time\nnow = time.time\n"), _source("now = clock.wall_us\n")),
        Canary(
            "asyncio.sleep",
            _source("import asyncio\nasync def f():\n    await asyncio.sleep(1)\n"),
            _source(""),
        ),
        Canary(
            "uuid.uuid4", _source("import uuid\nuuid.uuid4()\n"), _source("import uuid\nuuid.UUID(int=1)\n")
        ),
        Canary("pickle", _source("import pickle\n"), _source("import json\n")),
        Canary("pickle", _source("def f():\n    from pickle import loads\n"), _source("")),
        Canary(
            "random.choice",
            _source("import random\nrandom.choice([1])\n"),
            _source("import random\nrandom.Random(1)\n"),
        ),
        Canary(
            "random.random", _source("from random import random\n"), _source("from random import Random\n")
        ),
        Canary("datetime.now", _source("from datetime import datetime\ndatetime.now()\n"), _source("")),
    ],
    "test_sleeps": [
        Canary(
            "test_x",
            _test("import time\ndef test_x():\n    while f():\n        time.sleep(0.1)\n    assert True\n"),
            _test("import time\ndef test_x():\n    def task():\n        time.sleep(9)\n    assert task\n"),
        ),
        Canary(
            "test_x",
            _test("async def test_x():\n    await asyncio.sleep(0.01)\n"),
            _test("async def test_x():\n    await asyncio.sleep(0)\n"),
        ),
    ],
    "machine_paths": [
        Canary(
            _MACHINE.rsplit("/", 1)[0],
            {"docs/a.md": f"see {_MACHINE}\n"},
            {"docs/a.md": "see docs/work/root/a.md\n"},
        ),
        Canary("/ro" + "ot", _source('x = "/ro' + 'ot/x"\n'), _source('x = "https://example.com/work/1"\n')),
    ],
    "silenced_checks": [
        Canary(
            "noqa",
            _source(f"import x  {_SILENT}: F401\n"),
            _source(f"import x  {_SILENT}: F401 - re-exported for users\n"),
        ),
        Canary("noqa", _source(f"import x  {_SILENT} because we want it\n"), _source(f'x = "{_SILENT}"\n')),
        Canary(
            "type:ignore",
            _source(f"x = y  {_IGNORED}[attr-defined]\n"),
            _source(f"x = y  {_IGNORED}[attr-defined]  # the stubs lack it\n"),
        ),
        Canary(
            "RUF001",
            {"pyproject.toml": '    "RUF001",\n'},
            {"pyproject.toml": '    "RUF001", # dashes are meant\n'},
        ),
    ],
    "error_codes": [
        Canary(
            "LATE",
            {"src/ostinato/errors.py": _ERRORS, **_source('raise UserError("GONE", "it is gone")\n')},
            {
                "src/ostinato/errors.py": _ERRORS,
                **_source('raise UserError("GONE", "gone")\nrefuse("LATE")\n'),
            },
        ),
        Canary(
            "LOST",
            {"src/ostinato/errors.py": _ERRORS, **_source('raise errors.UserError("LOST", "gone")\n')},
            {
                "src/ostinato/errors.py": _ERRORS + 'def f():\n    raise InternalError("LATE", "x")\n',
                **_source('raise UserError("GONE", "gone")\n'),
            },
        ),
    ],
    "dead_files": [
        Canary(
            "ostinato.alone",
            {
                "src/ostinato/__init__.py": "from ostinato.used import x\n",
                "src/ostinato/used.py": "",
                "src/ostinato/alone.py": "",
            },
            {"src/ostinato/__init__.py": 'RUN = "ostinato.slot"\n', "src/ostinato/slot.py": ""},
        ),
        # Two that only know each other are as dead as one.
        Canary(
            "ostinato.a",
            {"src/ostinato/a.py": "import ostinato.b\n", "src/ostinato/b.py": "import ostinato.a\n"},
            {
                "pyproject.toml": '[project.scripts]\no = "ostinato.a:main"\n',
                "src/ostinato/a.py": "def main():\n    from ostinato import b\n",
                "src/ostinato/b.py": "",
            },
        ),
    ],
    "hollow_tests": [
        Canary("test_x", _test("def test_x():\n    f()\n"), _test("def test_x():\n    assert f()\n")),
        Canary(
            "C.test_x",
            {"src/ostinato/testing/contracts/store.py": "class C:\n    def test_x(self):\n        f()\n"},
            _source("def test_x():\n    f()\n"),
        ),
        Canary(
            "TestX.test_x",
            _test("class TestX:\n    def test_x(self):\n        f()\n"),
            _test("def test_x():\n    with pytest.raises(KeyError):\n        f()\n"),
        ),
    ],
}

_CASES = [
    pytest.param(rule, canary, id=f"{rule.__name__}-{number}")
    for rule in RULES
    for number, canary in enumerate(CANARIES.get(rule.__name__, []))
]


def test_every_rule_has_a_canary() -> None:
    assert {rule.__name__ for rule in RULES} == set(CANARIES)


@pytest.mark.parametrize(("rule", "canary"), _CASES)
def test_rule_complains_of_what_breaks_it(rule: Rule, canary: Canary) -> None:
    assert canary.name in {violation.name for violation in rule(Project(canary.bad))}


@pytest.mark.parametrize(("rule", "canary"), _CASES)
def test_rule_is_silent_about_what_keeps_it(rule: Rule, canary: Canary) -> None:
    assert [str(violation) for violation in rule(Project(canary.good))] == []
