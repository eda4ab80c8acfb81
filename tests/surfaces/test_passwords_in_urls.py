"""No surface shows a password that somebody has written into a URL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.dev import clean_environment

from ostinato.clock import SystemClock
from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.read import read_document
from ostinato.control.document.yaml_text import read_yaml
from ostinato.core.url_text import shown_url, without_passwords
from ostinato.errors import OstinatoError
from ostinato.observe.logs import redacted
from ostinato.sdk.app import App
from ostinato.settings_readers import read_address, read_addresses
from ostinato.store.from_url import open_store_from_url

SECRET = "hunter2"

#: What somebody may write where a URL is wanted; none of it is one.
WRONG_URLS = [
    f"http://user:{SECRET}@h/ x",
    f"http://user:{SECRET} 7@h/x",
    f"http://user:{SECRET}@h:70000/x",
    f"http://user:{SECRET}@h:0/x",
    f"http://user:{SECRET}@[h/x",
    f"http://user:{SECRET}@/x",
    f"http://user:{SECRET}@:80/x",
    f"http:///user:{SECRET}@h/x",
    f"http:user:{SECRET}@h/x",
    f"ftp://user:{SECRET}@h/x",
    f"user:{SECRET}@h/x",
    f"https://{SECRET}@h/ x",
    f"http://user:a/b@{SECRET}@h/ x",
    f"http://h/ x?password={SECRET}",
    f"http://h:x/?api_key={SECRET}&a=b",
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_refused_url_of_a_document_is_quoted_without_what_is_secret(url: str) -> None:
    task = {"name": "call", "http": {"method": "GET", "url": url}}
    for said in (task, {"name": "call", "url": url}, {"name": "call", "http": url}):
        value = {"version": 1, "tasks": [said]}
        for read in (
            lambda value=value: read_document(value),
            lambda value=value: read_yaml(json.dumps(value).encode(), name="tasks.yaml"),
        ):
            with pytest.raises(InvalidDocument) as caught:
                read()
            assert SECRET not in _everything(*caught.value.errors)


@pytest.mark.parametrize("url", WRONG_URLS)
def test_refused_url_of_an_app_a_setting_or_a_database_is_quoted_without_what_is_secret(url: str) -> None:
    def declare() -> object:
        other = App("other")
        other.http("call", "GET", url=url)
        return other.definitions()

    wrong = [
        declare,
        lambda: App("shop", url),
        lambda: read_address(url),
        lambda: read_addresses(url),
        lambda: open_store_from_url(url, clock=SystemClock()),
        lambda: open_store_from_url(f"postgresql://user:{SECRET}@h/x?a=b", clock=SystemClock()),
    ]
    for say in wrong:
        with pytest.raises(OstinatoError) as caught:
            say()
        assert SECRET not in _everything(caught.value)


def _everything(*errors: OstinatoError) -> str:
    return "\n".join(f"{error} {error.hint} {error.subject} {error.field} {error.place}" for error in errors)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:hunter2@h/x", "http://user:***@h/x"),
        (
            "postgresql+asyncpg://me:p@ss@db:5432/x?sslmode=on",
            "postgresql+asyncpg://me:***@db:5432/x?sslmode=on",
        ),
        ("redis://:hunter2@h:6379/0", "redis://:***@h:6379/0"),
        ("https://token@h/x", "https://***@h/x"),
        ("postgres://me@db/x", "postgres://me@db/x"),
        ("postgres://me@db/x?password=hunter2&a=b", "postgres://me@db/x?password=***&a=b"),
        ("see http://a:b@c/ and http://d:e@f/", "see http://a:***@c/ and http://d:***@f/"),
        ("http://h:8080/users/@me", "http://h:8080/users/@me"),
        ("http://[::1]:8080/users/@me", "http://[::1]:8080/users/@me"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("me@example.com wrote at 12:30", "me@example.com wrote at 12:30"),
    ],
)
def test_password_is_replaced_and_everything_else_stays(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert without_passwords(shown) == shown


@pytest.mark.parametrize("url", ["http://h/x", "http://h:80/@me", "https://[::1]/", "nonsense", ""])
def test_what_holds_no_password_is_quoted_as_it_is(url: str) -> None:
    assert shown_url(url) == url


def test_log_lines_show_no_password() -> None:
    line = redacted(
        {"event": "x", "url": f"postgres://me:a/{SECRET}@h/x", "text": f"at http://u:{SECRET}@h/"}
    )
    assert SECRET not in json.dumps(line)


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "--json"),
        ("doctor",),
        ("task", "list"),
        ("task", "list", "--json"),
        ("dev", "tasks.yaml"),
        ("scheduler",),
        ("apply", "-f", "tasks.yaml"),
    ],
    ids=" ".join,
)
def test_database_with_a_password_is_shown_by_no_command(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "tasks.yaml").write_text("version: 1\ntasks: []\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ostinato.cli", *arguments],
        cwd=tmp_path,
        env={
            **clean_environment(),
            "OSTINATO_DATABASE": f"postgresql://me:{SECRET}@db/x",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
