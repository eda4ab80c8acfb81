"""Which scheduler an app talks to: the argument, then the environment, then the default address."""

from __future__ import annotations

import re

import pytest

from ostinato import App, UnavailableError, UserError
from ostinato.sdk.gateway.address import DEFAULT_URL, base_url, is_on_this_machine, said_url


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OSTINATO_URL", "OSTINATO_DATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        (None, {}, ("", "http://127.0.0.1:8640")),
        (None, {"OSTINATO_URL": ""}, ("", DEFAULT_URL)),
        (None, {"OSTINATO_DATABASE": "sqlite:///b.db"}, ("OSTINATO_DATABASE", "sqlite:///b.db")),
        (
            None,
            {"OSTINATO_URL": "sqlite:///a.db", "OSTINATO_DATABASE": "sqlite:///b.db"},
            ("OSTINATO_URL", "sqlite:///a.db"),
        ),
        (
            None,
            {"OSTINATO_URL": "https://example.com/jobs/", "OSTINATO_DATABASE": "sqlite:///b.db"},
            ("OSTINATO_URL", "https://example.com/jobs/"),
        ),
        ("sqlite:///c.db", {"OSTINATO_URL": "http://x"}, ("url", "sqlite:///c.db")),
        ("http://y:1", {"OSTINATO_DATABASE": "sqlite:///b.db"}, ("url", "http://y:1")),
    ],
)
def test_the_url_is_the_argument_then_the_environment_then_the_default_address(
    monkeypatch: pytest.MonkeyPatch, url: str | None, environment: dict[str, str], expected: tuple[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert said_url(url) == expected
    assert said_url(url).is_http == expected[1].startswith("http")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "neither an HTTP address nor a database's URL"),
        ("shop.db", "neither an HTTP address"),
        ("127.0.0.1:8640", "neither an HTTP address"),
        ("ftp://example.com", "neither an HTTP address"),
        ("http://", "names no host"),
        ("http:///path", "names no host"),
        ("http://host:99999", "port that is none"),
        ("http://host:0", "port that is none"),
        ("http://host:http", "port that is none"),
        ("http://host/?a=b", "more than host, port and path"),
        ("http://host/#there", "more than host, port and path"),
        ("http://ho st/", "a space or a control character"),
        ("http://host/\x07", "a space or a control character"),
        ("http://[::1", "is no address"),
    ],
)
def test_what_is_no_address_is_refused_where_the_app_is_made(url: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        App("shop", url)
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "url")
    assert caught.value.hint


@pytest.mark.parametrize(
    "url", ["http://ann:s3cret@host:99999/x y", "https://s3cret@host", "HTTP://:s3cret@h"]
)
def test_an_address_with_a_password_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(UserError, match="holds a user name or password") as caught:
        App("shop", url)
    assert "s3cret" not in f"{caught.value}{caught.value.subject}{caught.value!r}"


def test_a_variable_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_URL", "http://host:99999")
    with pytest.raises(UserError) as caught:
        App("shop").submit("report")
    assert caught.value.field == "OSTINATO_URL"
    monkeypatch.delenv("OSTINATO_URL")
    monkeypatch.setenv("OSTINATO_DATABASE", "http://127.0.0.1:8640")
    with pytest.raises(UserError, match="an HTTP address, not a database") as caught:
        App("shop").submit("report")
    assert (caught.value.field, caught.value.hint) == ("OSTINATO_DATABASE", "give it as OSTINATO_URL")


def test_a_missing_database_names_the_variable_that_named_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_DATABASE", "sqlite:////nowhere/shop.db")
    app = App("shop")
    with pytest.raises(UnavailableError, match=r"/nowhere/shop\.db") as caught:
        app.submit("report")
    assert caught.value.field == "OSTINATO_DATABASE"
    app.close()


def test_the_api_is_found_below_the_path_of_the_address() -> None:
    for url, base in (
        ("HTTPS://Example.com:8443/jobs/", "https://Example.com:8443/jobs"),
        (" http://h ", "http://h"),
        ("http://[::1]:8640/", "http://[::1]:8640"),
    ):
        assert base_url(said_url(url)) == base


def test_an_address_of_this_machine_is_told_from_others() -> None:
    ours = (
        "http://127.0.0.1:8640",
        "http://127.9.9.9",
        "http://localhost",
        "http://[::1]:1",
        "http://a.localhost",
    )
    others = ("http://example.com", "http://10.0.0.1", "http://localhost.example.com", "http://[2001:db8::1]")
    assert [is_on_this_machine(url) for url in (*ours, *others)] == [True] * len(ours) + [False] * len(others)
