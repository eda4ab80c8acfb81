"""Values and texts that are hard to carry, through a real worker into SQLite and back: equal, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.services import Services

APP = r"""
import asyncio, logging
from datetime import datetime, timezone
from decimal import Decimal

FAST = {"retry": Retry.none(), "overlap": "allow"}


def nested(depth):
    value = "deep"
    for _ in range(depth):
        value = [value]
    return value


def itself():
    value = []
    value.append(value)
    return value


# By name: what is returned, and the path that a refusal must name; None if it must come back equal.
RESULTS = {
    "nan": (float("nan"), "result"),
    "infinity": (float("inf"), "result"),
    "1e400": (float("1e400"), "result"),
    "2^63": (2**63, None),
    "2^64": (2**64, "result"),
    "2^53+1": (2**53 + 1, None),
    "-2^63-1": (-(2**63) - 1, "result"),
    "bytes": (b"raw", "result"),
    "datetime": (datetime(2026, 1, 1, tzinfo=timezone.utc), "result"),
    "decimal": (Decimal("0.1"), "result"),
    "set": ({1}, "result"),
    "integer keys": ({"a": {1: 2}}, "result.a"),
    "inner bytes": ({"a": [0, {"b": b"x"}]}, "result.a[1].b"),
    "nested 90": (nested(90), None),
    "nested 10000": (nested(10_000), "result[0]"),
    "itself": (itself(), "result[0]"),
    "surrogate": ({"a": "\ud800"}, "result.a"),
    "nul": ("a\0b", None),
    "float": (0.1 + 0.2, None),
}


@app.task(**FAST)
def returns(name: str):
    return RESULTS[name][0]


@app.task(**FAST)
async def returns_async(name: str):
    return RESULTS[name][0]


TYPED = {7: (datetime(2026, 1, 1, tzinfo=timezone.utc), Decimal("0.10"), b"\0\xff", {1, 2})}


@app.task(**FAST)
def typed() -> dict[int, tuple[datetime, Decimal, bytes, set[int]]]:
    return TYPED


ROUNDED = [2**53 + 1, 0.5, {"a": 2**53 + 1}]


# An integer that its annotation would round.
@app.task(**FAST)
def rounds() -> list[float | dict[str, float]]:
    return ROUNDED


@app.task(**FAST)
def echo(text: str) -> str:
    return text


@app.task(**FAST)
def keeps(value):
    return value


def speak(context):
    print("printed a\0b")
    sys.stdout.buffer.write(b"raw c\0\xff\xfed \xc3\n")
    sys.stdout.flush()
    logging.getLogger("shop").warning("logged e\0f")
    context.progress(0.5, "told g\0h")
    raise ValueError("raised i\0j\ud800")


@app.task(**FAST)
def speaks(context: Context) -> None:
    speak(context)


@app.task(**FAST)
async def speaks_async(context: Context) -> None:
    print("printed a\0b")
    logging.getLogger("shop").warning("logged e\0f")
    context.progress(0.5, "told g\0h")
    raise ValueError("raised i\0j\ud800")


app.shell("prints", r"printf 'printed a\0b\nraw c\0\377\376d \303\n'", **FAST)
app.shell("reads", "cat payload.json; printf %s \"$OSTINATO_PAYLOAD\"", **FAST)
""".replace("import asyncio", "import asyncio, sys")

#: Every way in, with the field that its refusal must name.
REFUSED_INPUT = r"""
from ostinato.errors import UserError

def refused(act):
    try:
        act()
    except UserError as error:
        return [error.code, error.field]
    return ["accepted", ""]

def declared(**options):
    other = App("other")
    name = options.pop("name", "t")
    other.shell(name, "true", **options)
    other.apply()

print(json.dumps({
    "task of a submission": refused(lambda: app.submit("a\0b")),
    "name of a task": refused(lambda: declared(name="a\0b")),
    "name of a label": refused(lambda: declared(labels={"a\0b": "c"})),
    "value of a label": refused(lambda: declared(labels={"a": "b\0c"})),
    "key": refused(lambda: echo.options(key="a\0b").submit("x")),
    "namespace": refused(lambda: App("other", namespace="a\0b")),
    "reason of a cancel": refused(lambda: echo.submit("x").cancel("a\0b")),
    "payload that is NaN": refused(lambda: app.submit("keeps", {"value": float("nan")})),
    "payload of bytes": refused(lambda: app.submit("keeps", {"value": [b"x"]})),
    "payload of integers as keys": refused(lambda: app.submit("keeps", {"value": {1: 2}})),
    "payload that is nested": refused(lambda: app.submit("keeps", {"value": nested(10_000)})),
}))
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    started = Services(tmp_path_factory.mktemp("values"), APP)
    started.start_scheduler()
    started.start_worker(slots=1)
    # Both kinds of process are there before the first test.
    _ended(started, "[echo.submit('a'), returns_async.submit('nul')]")
    yield started
    started.close()


def _ended(services: Services, submit: str) -> list[str]:
    """Submit, and wait until everything has ended; ids in order."""
    ids = services.run(f"print(*[handle.id for handle in {submit}])").split()
    services.until(lambda: all(services.state(each)[0] in ("success", "failed") for each in ids))
    return ids


def _failure(services: Services, identity: str) -> dict[str, object]:
    ((text,),) = services.rows("select failure from instance where id = ?", identity)
    assert text is not None
    failure: dict[str, object] = json.loads(str(text))
    return failure


def _output(services: Services, identity: str, stream: str) -> str:
    """What an ended attempt has written there; it may be stored a moment later than its end."""
    query = "select text from output where instance_id = ? and stream = ? order by sequence"
    rows = services.until(lambda: services.rows(query, identity, stream))
    return "".join(str(text) for (text,) in rows)


@pytest.mark.parametrize("task", ["returns", "returns_async"])
def test_c161_a_result_comes_back_equal_or_is_refused_with_its_path(services: Services, task: str) -> None:
    names = json.loads(
        services.run("print(json.dumps([[name, path] for name, (_, path) in RESULTS.items()]))")
    )
    ids = _ended(services, f"[{task}.submit(name) for name in RESULTS]")
    equal = json.loads(
        services.run(
            f"equal = lambda id, name: app.handle(id).result() == RESULTS[name][0]\n"
            f"print(json.dumps([RESULTS[name][1] is None and equal(id, name) "
            f"for id, name in zip({ids!r}, RESULTS)]))"
        )
    )
    for identity, (name, path), is_equal in zip(ids, names, equal, strict=True):
        if path is None:
            assert (name, services.state(identity)[0], is_equal) == (name, "success", True)
            continue
        assert (name, services.state(identity)[0]) == (name, "failed")
        failure = _failure(services, identity)
        assert (name, failure["code"]) == (name, "BAD_RESULT")
        assert path in str(failure["message"])
        assert len(str(failure["message"])) < 1000


def test_c161_an_annotated_result_comes_back_as_its_type_and_none_is_rounded(services: Services) -> None:
    assert services.run("print(typed.submit().result(30) == TYPED)") == "True"
    assert services.run("print(rounds.submit().result(30) == ROUNDED)") == "True"


def test_c157_nul_and_bytes_that_are_no_text_are_shown_alike_wherever_they_come_from(
    services: Services,
) -> None:
    """NUL is U+2400, a byte that is no UTF-8 is \\xNN, a lone surrogate is U+FFFD; the state is stored."""
    function, coroutine, command = _ended(
        services, "[speaks.submit(), speaks_async.submit(), app.submit('prints')]"
    )
    assert _output(services, function, "stdout") == "printed a\u2400b\nraw c\u2400\\xff\\xfed \\xc3\n"
    assert _output(services, coroutine, "stdout") == "printed a\u2400b\n"
    assert _output(services, command, "stdout") == _output(services, function, "stdout")
    for identity in (function, coroutine):
        log = _output(services, identity, "log")
        assert "logged e\u2400f" in log
        assert "told g\u2400h" in log
        failure = _failure(services, identity)
        assert "raised i\u2400j\ufffd" in str(failure["message"])
        assert "raised i\u2400j\ufffd" in str(failure["traceback"])
    ((result,),) = services.rows("select result from instance where id = ?", command)
    assert isinstance(result, bytes)
    assert json.loads(result)["stdout_tail"] == _output(services, command, "stdout").removesuffix("\n")
    stored = services.rows("select failure, reason from instance union all select text, stream from output")
    assert not any("\0" in str(text) for row in stored for text in row)


def test_c157_nul_in_a_payload_arrives_unchanged(services: Services) -> None:
    echoed, read = _ended(services, r"[echo.submit('a\0b'), app.submit('reads', {'text': 'a\0b'})]")
    assert services.run(rf"print(app.handle({echoed!r}).result() == 'a\0b')") == "True"
    # JSON writes it as an escape, so that neither the file nor the variable holds the byte itself.
    assert _output(services, read, "stdout").strip() == r'{"text":"a\u0000b"}' * 2


def test_c157_names_keys_and_reasons_with_nul_are_refused_and_the_field_is_named(services: Services) -> None:
    told = json.loads(services.run(REFUSED_INPUT))
    code, deep_path = told.pop("payload that is nested")
    assert (code, deep_path[:16], len(deep_path)) == ("INVALID_PAYLOAD", "payload.value[0]", 201)
    assert told == {
        "task of a submission": ["INVALID_NAME", "task"],
        "name of a task": ["INVALID_NAME", "name"],
        "name of a label": ["INVALID_NAME", "labels"],
        "value of a label": ["INVALID_VALUE", "labels.a"],
        "key": ["INVALID_NAME", "key"],
        "namespace": ["INVALID_NAME", "namespace"],
        "reason of a cancel": ["INVALID_VALUE", "reason"],
        "payload that is NaN": ["INVALID_PAYLOAD", "payload.value"],
        "payload of bytes": ["INVALID_PAYLOAD", "payload.value[0]"],
        "payload of integers as keys": ["INVALID_PAYLOAD", "payload.value"],
    }
