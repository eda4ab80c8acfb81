"""Which scheduler an app talks to, and who said so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from ostinato.core.url_text import without_passwords
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.settings_readers import is_loopback, sqlite_path

#: Where ``ostinato dev`` and ``ostinato scheduler`` answer unless told otherwise (design section 11).
DEFAULT_URL = "http://127.0.0.1:8640"
#: In this order; the second is what the scheduler reads, so that it names a database.
_VARIABLES = ("OSTINATO_URL", "OSTINATO_DATABASE")
#: Kinds of database that a URL may name; which of them this version has, the store says.
_DATABASES = frozenset({"sqlite", "memory", "postgresql", "postgres", "mysql", "mariadb"})
#: What can be wrong with the database that a URL names.
_DATABASE_CODES = frozenset(
    {"DATABASE_UNAVAILABLE", "DATABASE_UNUSABLE", "DATABASE_FULL", "SCHEMA_VERSION", "INVALID_SETTING"}
)
_HINT = f"write {DEFAULT_URL}, or a database's URL such as sqlite:///shop.db"


class SaidUrl(NamedTuple):
    """A URL, and what said it: ``url``, a variable's name, or empty for the default."""

    source: str
    value: str

    @property
    def is_http(self) -> bool:
        """Whether it names an API rather than a database."""
        return _scheme(self.value) in ("http", "https")


def said_url(url: str | None) -> SaidUrl:
    """`url`, or ``OSTINATO_URL``, or ``OSTINATO_DATABASE``, or the scheduler's default address.

    Raises ``INVALID_SETTING`` naming the source of one that can be neither.
    """
    said = _said(url)
    if said.is_http:
        if said.source == "OSTINATO_DATABASE":
            raise _refusal(said, "names an HTTP address, not a database", hint="give it as OSTINATO_URL")
        _check_http(said)
    elif _scheme(said.value).partition("+")[0] not in _DATABASES:
        raise _refusal(said, "is neither an HTTP address nor a database's URL", hint=_HINT)
    return said


def base_url(said: SaidUrl) -> str:
    """The API's address without a slash at its end, as it may be shown."""
    parts = urlsplit(said.value.strip())
    return f"{parts.scheme.lower()}://{parts.netloc}{parts.path.rstrip('/')}"


def is_on_this_machine(base: str) -> bool:
    """Whether an address is of this machine, so that no proxy of the environment leads there."""
    host = urlsplit(base).hostname or ""
    return is_loopback(host) or host.endswith(".localhost")


def require_database(said: SaidUrl) -> None:
    """Refuse an SQLite file that does not exist: opening it would make one that no scheduler looks into.

    Raises ``DATABASE_UNAVAILABLE`` naming the path and the source of the URL.
    """
    path = sqlite_path(said.value)
    if path is not None and not Path(path).exists():
        raise UnavailableError(
            "DATABASE_UNAVAILABLE",
            f"there is no database {Path(path).absolute()}",
            subject=without_passwords(said.value),
            field=said.source,
            hint="name the one of your scheduler, start one there with `ostinato dev` or "
            "`ostinato scheduler`, or call app.apply(), which makes it",
        )


@contextmanager
def naming_source(said: SaidUrl) -> Iterator[None]:
    """Errors of the block about the database name what said its URL, as commands name their setting."""
    try:
        yield
    except OstinatoError as error:
        if said.source and error.code in _DATABASE_CODES and error.field in ("", "database"):
            error.field = said.source
        raise


def _said(url: str | None) -> SaidUrl:
    if url is not None:
        if not isinstance(url, str):
            raise UserError("INVALID_SETTING", f"{url!r} is not a text", field="url", hint=_HINT)
        return SaidUrl("url", url)
    for variable in _VARIABLES:
        if os.environ.get(variable):
            return SaidUrl(variable, os.environ[variable])
    return SaidUrl("", DEFAULT_URL)


def _scheme(url: str) -> str:
    scheme, colon, _ = url.strip().partition(":")
    return scheme.lower() if colon else ""


def _check_http(said: SaidUrl) -> None:
    parts = _split(said)
    # First, and without the text: whatever else is wrong with it must not show a password.
    if "@" in parts.netloc:
        raise _refusal(said, "holds a user name or password", hint="give the address without them")
    if any(character.isspace() or not character.isprintable() for character in said.value.strip()):
        raise _refusal(said, "holds a space or a control character", hint=_HINT)
    try:
        port_is_wrong = parts.port == 0
    except ValueError:
        port_is_wrong = True
    if port_is_wrong:
        raise _refusal(said, "has a port that is none", hint="a port is a number from 1 to 65535")
    if not parts.hostname:
        raise _refusal(said, "names no host", hint=_HINT)
    if parts.query or parts.fragment:
        raise _refusal(said, "holds more than host, port and path", hint=_HINT)


def _split(said: SaidUrl) -> SplitResult:
    try:
        return urlsplit(said.value.strip())
    except ValueError:
        raise _refusal(said, "is no address", hint=_HINT) from None


def _refusal(said: SaidUrl, why: str, *, hint: str) -> UserError:
    return UserError("INVALID_SETTING", f"the URL {why}", field=said.source, hint=hint)
