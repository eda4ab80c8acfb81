"""Settings: one precedence, and errors that name the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.errors import UserError
from ostinato.scheduler.config import NodeConfig
from ostinato.settings import (
    FILE_NAME,
    SETTINGS,
    Address,
    Settings,
    is_loopback,
    load_settings,
    read_join_token,
)

#: What opens the workers' address to other machines.
OPEN_FLAGS: dict[str, object] = {
    "join_token_file": "token",
    "tls_certificate": "scheduler.pem",
    "tls_key": "scheduler.key",
}


def _refusal(flags: dict[str, object], environ: dict[str, str], cwd: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        load_settings(flags, environ, cwd=cwd)
    # A name and a duration keep the code that they have everywhere.
    codes = ("INVALID_SETTING", "INVALID_NAME", "INVALID_DURATION")
    assert caught.value.code in codes
    return caught.value


def test_flag_beats_variable_beats_file_beats_default(tmp_path: Path) -> None:
    assert load_settings({}, {}, cwd=tmp_path).namespace == "default"
    (tmp_path / FILE_NAME).write_text('namespace = "from-file"\n', encoding="utf-8")
    environ = {"OSTINATO_NAMESPACE": "from-variable"}
    assert load_settings({"namespace": None}, {}, cwd=tmp_path).namespace == "from-file"
    assert load_settings({"namespace": None}, environ, cwd=tmp_path).namespace == "from-variable"
    assert load_settings({"namespace": "from-flag"}, environ, cwd=tmp_path).namespace == "from-flag"


def test_defaults_are_those_of_the_design(tmp_path: Path) -> None:
    settings = load_settings({}, {}, cwd=tmp_path)
    assert settings.database == "sqlite:///ostinato.db"
    assert (str(settings.bind), str(settings.worker_bind)) == ("127.0.0.1:8640", "127.0.0.1:8641")
    assert (settings.worker_lease_us, settings.drain_timeout_us) == (60_000_000, 25_000_000)
    assert settings.async_slots == 100
    assert settings.slots >= 1
    assert settings.worker_name


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_refuses_nonsense_and_names_flag_variable_and_key(
    setting: object, tmp_path: Path
) -> None:
    name, flag, variable = setting.name, setting.flag, setting.variable  # type: ignore[attr-defined]  # a Setting
    assert _refusal({name: object()}, {}, tmp_path).field == flag
    assert _refusal({}, {variable: "\x1b"}, tmp_path).field == variable
    (tmp_path / FILE_NAME).write_text(f"{name} = 1979-05-27\n", encoding="utf-8")
    assert _refusal({}, {}, tmp_path).field == f"{FILE_NAME}: {name}"


def test_every_setting_has_its_field() -> None:
    names = {name.removesuffix("_us") for name in Settings.__struct_fields__}
    assert names == {setting.name for setting in SETTINGS} | {"sources"}


def test_zero_slots_is_zero_and_not_the_default(tmp_path: Path) -> None:
    assert load_settings({"slots": 0}, {}, cwd=tmp_path).slots == 0
    assert load_settings({}, {"OSTINATO_SLOTS": "0"}, cwd=tmp_path).slots == 0


def test_worker_without_any_slot_is_refused(tmp_path: Path) -> None:
    assert "nothing could run" in _refusal({"slots": 0, "async_slots": 0}, {}, tmp_path).message


def test_c077_a_worker_lease_too_short_to_honour_is_refused_with_the_minimum(tmp_path: Path) -> None:
    for value in ("1s", "2s", "5999ms"):
        assert "minimum of 6s" in _refusal({"worker_lease": value}, {}, tmp_path).message
    assert load_settings({"worker_lease": "6s"}, {}, cwd=tmp_path).worker_lease_us == 6_000_000


@pytest.mark.parametrize("lease_s", [6, 30, 60, 3_600])
def test_c077_a_worker_lease_is_renewed_at_least_three_times_before_it_ends(lease_s: int) -> None:
    config = NodeConfig(worker_lease_us=lease_s * 1_000_000)
    config.validate()
    assert 3 * config.heartbeat_us <= config.worker_lease_us


@pytest.mark.parametrize("bind", ["0.0.0.0:8640", "192.0.2.1:8640", "[::]:8640", "example.com:8640"])
def test_bind_that_others_can_reach_is_refused_and_says_why(bind: str, tmp_path: Path) -> None:
    refusal = _refusal({"bind": bind}, {}, tmp_path)
    assert "TLS" in refusal.message
    assert "token" in refusal.message


@pytest.mark.parametrize("bind", ["0.0.0.0:8641", "192.0.2.1:8641", "[::]:8641", "example.com:8641"])
def test_workers_address_that_others_can_reach_takes_a_token_and_tls(bind: str, tmp_path: Path) -> None:
    everything = {"worker_bind": bind, **OPEN_FLAGS}
    assert str(load_settings(everything, {}, cwd=tmp_path).worker_bind) == bind
    refusal = _refusal({}, {"OSTINATO_WORKER_BIND": bind}, tmp_path)
    assert refusal.field == "OSTINATO_WORKER_BIND"
    assert "refused without TLS and a join token" in refusal.message
    assert "--join-token-file, --tls-certificate, --tls-key" in refusal.hint
    assert "--join-token-file" in _refusal({**everything, "join_token_file": None}, {}, tmp_path).hint


#: Every address of the machine, or names that may lead anywhere: none of them is known to be loopback.
_OPEN_HOSTS = [
    "0.0.0.0",
    "0",
    "*",
    "[::]",
    "[::0]",
    "[0:0:0:0:0:0:0:0]",
    "[::ffff:0.0.0.0]",
    "[::ffff:192.0.2.1]",
    "[fe80::1%eth0]",
    "127.1",
    "2130706433",
    "127.0.0.1.example.com",
    "localhost.",
    "LOCALHOST",
    "this-machine",
]


@pytest.mark.parametrize("setting", ["bind", "worker_bind"])
@pytest.mark.parametrize("host", _OPEN_HOSTS)
@pytest.mark.parametrize("advertise", [None, "127.0.0.1:8641"])
def test_an_open_bind_is_refused_however_it_is_written_and_whatever_is_advertised(
    setting: str, host: str, advertise: str | None, tmp_path: Path
) -> None:
    given = {"advertise": advertise} if advertise else {}
    for flags, environment in (
        ({setting: f"{host}:8641", **given}, {}),
        (given, {f"OSTINATO_{setting.upper()}": f"{host}:8641"}),
    ):
        assert "can be reached from other machines" in _refusal(flags, environment, tmp_path).message


@pytest.mark.parametrize("setting", ["bind", "worker_bind"])
@pytest.mark.parametrize("address", [":8641", "8641", "::8641", "[]:8641", "127.0.0.1 :8641"])
def test_a_bind_without_a_host_is_no_address(setting: str, address: str, tmp_path: Path) -> None:
    assert "is not an address" in _refusal({setting: address}, {}, tmp_path).message


def test_address_of_health_stays_on_this_machine_even_with_token_and_tls(tmp_path: Path) -> None:
    refusal = _refusal({"bind": "0.0.0.0:8640", **OPEN_FLAGS}, {}, tmp_path)
    assert refusal.field == "--bind"
    assert "reverse proxy" in refusal.hint


@pytest.mark.parametrize(
    ("given", "other"),
    [
        ("tls_certificate", "--tls-key"),
        ("tls_key", "--tls-certificate"),
        ("tls_server_name", "--tls-ca"),
    ],
)
def test_half_of_a_pair_is_refused_with_the_other_half(given: str, other: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(f'{given} = "x"\n', encoding="utf-8")
    refusal = _refusal({}, {}, tmp_path)
    assert refusal.field == f"{FILE_NAME}: {given}"
    assert other in refusal.hint


def test_join_token_is_the_text_of_the_file_and_shown_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n  open sesame \n", encoding="utf-8")
    settings = load_settings({"join_token_file": str(path)}, {}, cwd=tmp_path)
    token = read_join_token(settings)
    assert token == "open sesame"
    assert "sesame" not in repr(settings) + repr(token)
    assert read_join_token(load_settings({}, {}, cwd=tmp_path)) == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b" \n", "is empty"),
        (b"one\ntwo\n", "holds more than one line"),
        (b"\xff\xfe", "is not a text file"),
    ],
)
def test_join_token_file_that_holds_none_is_named_with_its_source(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    settings = load_settings({}, {"OSTINATO_JOIN_TOKEN_FILE": str(path)}, cwd=tmp_path)
    with pytest.raises(UserError) as caught:
        read_join_token(settings)
    assert caught.value.code == "INVALID_SETTING"
    assert caught.value.field == "OSTINATO_JOIN_TOKEN_FILE"
    assert caught.value.message.startswith(f"{path} {said}")


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "localhost:8640", "[::1]:8640", "127.9.9.9:1"])
def test_loopback_bind_is_accepted_and_shown_as_written(bind: str, tmp_path: Path) -> None:
    settings = load_settings({"bind": bind, "worker_bind": bind}, {}, cwd=tmp_path)
    assert str(settings.bind) == str(settings.worker_bind) == bind


@pytest.mark.parametrize("bind", ["", "8640", "127.0.0.1", ":8640", "127.0.0.1:", "127.0.0.1:65536", "h:-1"])
def test_address_that_is_none_is_refused(bind: str, tmp_path: Path) -> None:
    assert _refusal({"bind": bind}, {}, tmp_path).hint


def test_schedulers_are_a_list_and_may_be_anywhere(tmp_path: Path) -> None:
    settings = load_settings({"scheduler": "a.example:1, [2001:db8::1]:2"}, {}, cwd=tmp_path)
    assert settings.scheduler == (Address("a.example", 1), Address("2001:db8::1", 2))


def test_scheduler_without_a_port_to_connect_to_is_refused(tmp_path: Path) -> None:
    assert "port" in _refusal({"scheduler": "127.0.0.1:0"}, {}, tmp_path).message


def test_labels_come_as_flags_as_text_and_as_table(tmp_path: Path) -> None:
    expected = {"zone": "eu", "gpu": ""}
    assert load_settings({"labels": ["zone=eu", "gpu="]}, {}, cwd=tmp_path).labels == expected
    assert load_settings({}, {"OSTINATO_LABELS": "zone=eu,gpu="}, cwd=tmp_path).labels == expected
    (tmp_path / FILE_NAME).write_text('[labels]\nzone = "eu"\ngpu = ""\n', encoding="utf-8")
    assert load_settings({}, {}, cwd=tmp_path).labels == expected
    assert "twice" in _refusal({"labels": ["a=1", "a=2"]}, {}, tmp_path).message


def test_unknown_key_of_the_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('worker-lease = "60s"\n', encoding="utf-8")
    refusal = _refusal({}, {}, tmp_path)
    assert refusal.field == f"{FILE_NAME}: worker-lease"
    assert "worker_lease" in refusal.hint


def test_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("a = = b\n", encoding="utf-8")
    assert _refusal({}, {}, tmp_path).field == FILE_NAME


def test_only_loopback_is_loopback() -> None:
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("localhost.example")
