"""Log lines: fields of design section 8, one shape, no secrets, nothing that a terminal obeys."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from house.project import ROOT

from ostinato.observe import records
from ostinato.observe.logs import FIELDS, REDACTED, LogHook, configure_logging
from ostinato.observe.records import Record, trace_id_of

_NOW_US = 1_767_225_600_000_000


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _configured(form: str, level: str = "debug") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(
        level=level,
        form="json" if form == "json" else "text",
        service_name="ostinato-test",
        stream=stream,
        wall_us=lambda: _NOW_US,
    )
    return stream


def _decided(**changes: object) -> records.RetryDecided:
    fields: dict[str, object] = {
        "namespace": "default",
        "task": "load",
        "instance_id": "01abc",
        "attempt": 2,
        "retry_count": 1,
        "rule": "retry_on",
        "sentence": "code HTTP_503 is on retry_on",
        "due_us": _NOW_US,
        "error_code": "HTTP_503",
    }
    return records.RetryDecided(**(fields | changes))  # type: ignore[arg-type]  # changes are typed by the caller


def test_json_line_has_every_field_and_the_stable_event_name() -> None:
    stream = _configured("json")
    LogHook().on(_decided())
    line = json.loads(stream.getvalue())
    assert [name for name in line if name in FIELDS] == list(FIELDS)
    assert line["event"] == "retry_decided"
    assert line["timestamp"] == "2026-01-01T00:00:00.000Z"
    assert line["level"] == "info"
    assert line["service_name"] == "ostinato-test"
    assert (line["instance_id"], line["attempt"], line["retry_count"]) == ("01abc", 2, 1)
    assert line["error_code"] == "HTTP_503"
    assert line["error_message"] is None


def test_one_trace_covers_all_attempts_of_an_instance_and_no_other() -> None:
    stream = _configured("json")
    for attempt in (1, 2):
        LogHook().on(_decided(attempt=attempt))
    LogHook().on(_decided(instance_id="01xyz"))
    first, second, other = [json.loads(line)["trace_id"] for line in stream.getvalue().splitlines()]
    assert first == second == trace_id_of("01abc")
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert other != first


def test_standard_logging_takes_the_same_shape() -> None:
    stream = _configured("json")
    logging.getLogger("some.library").warning("disk %s", "full", extra={"free": 0})
    line = json.loads(stream.getvalue())
    assert line["event"] == "disk full"
    assert (line["level"], line["logger"], line["free"]) == ("warning", "some.library", 0)
    assert set(FIELDS) <= set(line)
    assert line["trace_id"] is None


def test_traceback_stays_inside_its_json_line() -> None:
    stream = _configured("json")
    try:
        raise ValueError("no such thing")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: no such thing" in json.loads(line)["exception"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_are_never_logged(form: str) -> None:
    stream = _configured(form)
    extra = {"join_token": "s3cret", "Authorization": "Bearer s3cret", "db_password": "s3cret"}
    logging.getLogger("x").warning("connected to postgresql://me:s3cret@host/db", extra=extra)
    assert "s3cret" not in stream.getvalue()
    assert stream.getvalue().count(REDACTED) == 4


@pytest.mark.parametrize("form", ["json", "text"])
def test_control_characters_of_data_do_not_reach_the_output(form: str) -> None:
    stream = _configured(form)
    LogHook().on(_decided(sentence="a\x1b[31mred\n2026 FAKE line\x00\ud800"))
    assert len(stream.getvalue().splitlines()) == 1
    assert not re.search("[\x00-\x09\x0b-\x1f]", stream.getvalue())


def test_text_line_is_readable_and_leaves_out_what_does_not_apply() -> None:
    stream = _configured("text")
    LogHook().on(_decided())
    line = stream.getvalue().rstrip()
    assert line.startswith("2026-01-01T00:00:00.000Z INFO    retry_decided")
    assert 'sentence="code HTTP_503 is on retry_on"' in line
    assert "due=2026-01-01T00:00:00Z" in line
    assert "error_message" not in line


def test_duration_in_text_has_a_unit_and_no_suffix_of_another() -> None:
    stream = _configured("text")
    logging.getLogger("x").warning("slow", extra={"lag_us": 12_300, "group_us": "a few"})
    assert "lag=12.3ms" in stream.getvalue()
    assert 'group_us="a few"' in stream.getvalue()


def test_routine_success_is_quiet_unless_asked_for_and_failures_are_loud() -> None:
    stream = _configured("json", level="info")
    success = records.InstanceEnded(namespace="n", task="t", instance_id="i", state="success")
    failed = records.InstanceEnded(namespace="n", task="t", instance_id="i", state="failed")
    LogHook().on(success)
    assert stream.getvalue() == ""
    LogHook(routine_level=logging.INFO).on(success)
    LogHook().on(failed)
    levels = [json.loads(line)["level"] for line in stream.getvalue().splitlines()]
    assert levels == ["info", "error"]


def test_fire_in_time_is_quiet_unless_asked_for_and_a_late_one_is_told() -> None:
    stream = _configured("json", level="info")
    in_time, late = (
        records.Fired(
            namespace="n", task="t", instance_id="i", trigger_id="x", fire_us=0, lateness_us=lateness_us
        )
        for lateness_us in (999_999, 1_000_000)
    )
    LogHook().on(in_time)
    assert stream.getvalue() == ""
    LogHook(routine_level=logging.INFO).on(in_time)
    LogHook().on(late)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["lateness_us"]) for line in lines] == [
        ("fired", 999_999),
        ("fired", 1_000_000),
    ]


def _record_types(base: type[Record] = Record) -> Iterator[type[Record]]:
    for kind in base.__subclasses__():
        yield from _record_types(kind)
        if kind.EVENT:
            yield kind


def test_event_names_are_unique_and_documented() -> None:
    names = [kind.EVENT for kind in _record_types()]
    assert len(names) == len(set(names)) > 15
    logged = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r'_log\.\w+\(\s*"([^"]*)"', path.read_text(encoding="utf-8"))
    }
    assert logged
    documented = (ROOT / "docs/observation.md").read_text(encoding="utf-8")
    assert [name for name in sorted({*names, *logged}) if f"| `{name}` |" not in documented] == []
