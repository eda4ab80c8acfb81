"""Whatever is wrong with a setting, and whoever finds it: the error names where the setting came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.clock import SystemClock
from ostinato.control.names import validate_name
from ostinato.core.pressure import Limits
from ostinato.errors import ConflictError, OstinatoError, UnavailableError, UserError
from ostinato.settings import FILE_NAME, SETTINGS, Settings, load_pressure, load_settings, naming_sources
from ostinato.store.from_url import open_store_from_url

#: By setting: what a person might write that is wrong.
WRONG: dict[str, list[str]] = {
    "database": [""],
    "bind": ["http://127.0.0.1:8640", "127.0.0.1", "::1:8640", "127.0.0.1:99999", "a b:1", "0.0.0.0:1"],
    "worker_bind": ["http://127.0.0.1:8641", "[127.0.0.1]:1", "h/x:1", "127.0.0.1:00000099999", "me@h:1"],
    "advertise": [
        "http://h:8641",
        "h",
        "0.0.0.0:8641",
        "[::]:8641",
        "[::0]:8641",
        "0:8641",
        "[::ffff:0.0.0.0]:8641",
        "h:0",
    ],
    "scheduler": ["http://127.0.0.1:8641", "https://h:1", "h", "", ",", "h:1,", "h:0", "h:1;h:2"],
    "join_token_file": [""],
    "tls_certificate": [""],
    "tls_key": [""],
    "tls_ca": [""],
    "tls_server_name": [""],
    "data_dir": ["", "a\x00b"],
    "app": [",", "shop,,other", "shop,", "a\nb"],
    "namespace": ["", "a b", "-x", "ä", "x" * 201, "a/b"],
    "slots": ["", "many", "-1", "1.5", "100000"],
    "async_slots": ["x", "-1", "10000000"],
    "worker_name": ["", "x" * 201, "a\x7fb"],
    "labels": ["zone", "=eu", "a b=c", "a=1,a=2", f"a={'x' * 201}", "a=b\x1b"],
    "engine_socket": ["", "a\x00b"],
    "worker_lease": ["1s", "60", "2h", ""],
    "drain_timeout": ["-1s", "soon", "2d"],
    "retention_success": ["x", "-1s"],
    "retention_other": ["x", "-1s"],
    "routing": ["nearest", ""],
    "pressure_yellow": ["0", "-1", "x", "1.5", "", "1000001"],
    "pressure_red": ["0", "many", "1000001"],
    "log_level": ["loud"],
    "log_format": ["xml"],
}
_CASES = [(name, value) for name, values in WRONG.items() for value in values]
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def _toml(text: str) -> str:
    return '"' + "".join(f"\\u{ord(one):04x}" for one in text) + '"'


def _load(source: str, name: str, *, value: str, cwd: Path) -> tuple[Callable[[], Settings], str]:
    """What loads the settings with `value` from a source, and what an error must call that."""
    setting = _BY_NAME[name]
    if source == "flag":
        return lambda: load_settings({name: value}, {}, cwd=cwd), setting.flag
    if source == "variable":
        return lambda: load_settings({}, {setting.variable: value}, cwd=cwd), setting.variable
    (cwd / FILE_NAME).write_text(f"{name} = {_toml(value)}\n", encoding="utf-8")
    return lambda: load_settings({}, {}, cwd=cwd), f"{FILE_NAME}: {name}"


def test_table_has_every_setting() -> None:
    assert set(WRONG) == set(_BY_NAME)


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
@pytest.mark.parametrize(("name", "value"), _CASES, ids=lambda value: ascii(value)[:30])
def test_wrong_value_is_refused_and_its_source_named(
    name: str, value: str, source: str, tmp_path: Path
) -> None:
    load, called = _load(source, name, value=value, cwd=tmp_path)
    with pytest.raises(UserError) as caught:
        load()
    assert (caught.value.code, caught.value.field) == (_code(name, value), called)


def _code(name: str, value: str) -> str:
    """Names and durations are refused with the code that they have everywhere, all else as a setting."""
    if name == "namespace" or (name, value) == ("labels", "a b=c"):
        return "INVALID_NAME"
    durations = ("worker_lease", "drain_timeout", "retention_success", "retention_other")
    return "INVALID_DURATION" if name in durations else "INVALID_SETTING"


#: By setting that others look at: a value that may stand, and what somebody who uses it raises.
FOUND_LATER: list[tuple[str, str, OstinatoError]] = [
    ("database", "x", UserError("INVALID_SETTING", "no database", field="database")),
    ("database", "x", UnavailableError("DATABASE_UNAVAILABLE", "not there", field="--database")),
    ("database", "x", UserError("DATABASE_UNUSABLE", "corrupt")),
    ("database", "x", UserError("SCHEMA_VERSION", "newer")),
    ("database", "x", ConflictError("NODE_ALREADY_RUNNING", "another")),
    ("bind", "127.0.0.1:1", ConflictError("PORT_IN_USE", "taken", field="--bind")),
    ("worker_bind", "127.0.0.1:1", ConflictError("PORT_IN_USE", "taken", field="worker_bind")),
    ("app", "x", UserError("INVALID_APP", "does not import", field="app")),
    ("app", "x", UserError("INVALID_APP", "does not import")),
    ("data_dir", "x", UserError("INVALID_SETTING", "not writable", field="data_dir")),
    ("worker_name", "x", UserError("INVALID_SETTING", "is taken", field="worker_name")),
    ("slots", "3", UserError("INVALID_SETTING", "too many", field="capacity")),
    ("drain_timeout", "1s", UserError("INVALID_SETTING", "negative", field="drain_timeout_us")),
    ("labels", "a=b", UserError("INVALID_SETTING", "wrong", field="--label")),
    ("join_token_file", "x", UserError("UNKNOWN_TOKEN", "another token")),
    ("scheduler", "h:1", UserError("PROTOCOL_MISMATCH", "newer")),
]


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
@pytest.mark.parametrize(("name", "value", "error"), FOUND_LATER, ids=lambda value: str(value)[:30])
def test_fault_that_is_found_later_names_the_source_too(
    name: str, value: str, error: OstinatoError, source: str, tmp_path: Path
) -> None:
    load, called = _load(source, name, value=value, cwd=tmp_path)
    raised = type(error)(error.code, error.message, field=error.field)
    with pytest.raises(OstinatoError) as caught, naming_sources(load()):
        raise raised
    assert caught.value is raised
    assert raised.field == called


@pytest.mark.parametrize("field", ["labels", "namespace", "retry.interval", ""])
def test_error_about_a_task_keeps_its_own_field(field: str, tmp_path: Path) -> None:
    settings = load_settings({"namespace": "x", "labels": "a=b"}, {}, cwd=tmp_path)
    with pytest.raises(UserError) as caught, naming_sources(settings):
        raise UserError("INVALID_NAME", "is not a name", field=field)
    assert caught.value.field == field


def test_setting_that_was_not_given_is_called_by_its_flag(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught, naming_sources(load_settings({}, {}, cwd=tmp_path)):
        raise UserError("DATABASE_UNUSABLE", "corrupt")
    assert caught.value.field == "--database"


def test_worker_without_the_token_is_told_which_option_gives_it(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught, naming_sources(load_settings({}, {}, cwd=tmp_path)):
        raise UserError("UNKNOWN_TOKEN", "the worker brings no token")
    assert "--join-token-file" in str(caught.value)


@pytest.mark.parametrize("url", ["oracle://x", "sqlite://x.db", "sqlite:///", "postgresql://h", "x.db"])
def test_url_that_is_no_database_names_its_source(url: str, tmp_path: Path) -> None:
    settings = load_settings({}, {"OSTINATO_DATABASE": url}, cwd=tmp_path)
    with pytest.raises(UserError) as caught, naming_sources(settings):
        open_store_from_url(settings.database, clock=SystemClock())
    assert caught.value.field == "OSTINATO_DATABASE"


@pytest.mark.parametrize("name", ["a", "A-b.c_d", "9", "x" * 200, "a b", "", ".a", "ä", "x" * 201, "a\n"])
def test_namespace_is_a_name_as_everywhere_else(name: str, tmp_path: Path) -> None:
    def is_accepted(check: Callable[[], object]) -> bool:
        try:
            check()
        except UserError:
            return False
        return True

    as_setting = is_accepted(lambda: load_settings({"namespace": name}, {}, cwd=tmp_path))
    assert as_setting == is_accepted(lambda: validate_name(name, field="namespace"))


def test_no_slots_at_all_names_where_the_zero_came_from(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_settings({}, {"OSTINATO_SLOTS": "0", "OSTINATO_ASYNC_SLOTS": "0"}, cwd=tmp_path)
    assert caught.value.field == "OSTINATO_SLOTS"


def test_url_of_a_scheduler_is_refused_with_what_to_leave_out(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_settings({"scheduler": "http://127.0.0.1:8641"}, {}, cwd=tmp_path)
    assert "without http://" in caught.value.hint


def test_a_yellow_limit_that_is_not_below_the_red_names_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("pressure_red = 100\n", encoding="utf-8")
    variable = {"OSTINATO_PRESSURE_YELLOW": "100"}
    with pytest.raises(UserError) as caught:
        load_settings({}, variable, cwd=tmp_path)
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "OSTINATO_PRESSURE_YELLOW")
    assert caught.value.message == "100 is not below pressure_red, which is 100"
    settings = load_settings({"pressure_yellow": 99}, variable, cwd=tmp_path)
    assert settings.pressure == Limits(yellow=99, red=100)
    with pytest.raises(UserError) as caught:
        load_pressure({**variable, "OSTINATO_PRESSURE_RED": "7"})
    assert caught.value.field == "OSTINATO_PRESSURE_YELLOW"


def test_a_program_without_settings_of_ours_has_limits_from_its_environment_alone(tmp_path: Path) -> None:
    assert load_pressure({"OSTINATO_SLOTS": "many"}) == Limits()
    assert load_pressure({"OSTINATO_PRESSURE_RED": "7"}) == Limits(red=7)
    with pytest.raises(UserError) as caught:
        load_pressure({"OSTINATO_PRESSURE_RED": "x"})
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "OSTINATO_PRESSURE_RED")
