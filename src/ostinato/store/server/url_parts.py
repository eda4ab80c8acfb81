"""Takes the URL of a server apart as everybody would, and refuses what could be read two ways."""

from __future__ import annotations

from typing import NamedTuple, NoReturn
from urllib.parse import parse_qsl, unquote

from ostinato.errors import UserError

_ENCODE = "percent-encode special characters in user and password: @ is %40, / is %2F, # is %23"
_FORM = "write scheme://user:password@host:port/database"


class Parts(NamedTuple):
    """A URL's parts as they stand, still percent-encoded, apart from host and parameters."""

    scheme: str
    user: str
    password: str | None
    #: Without the brackets of an IPv6 address; a path where it names a Unix socket; empty for none.
    host: str
    port: int | None
    path: str
    parameters: list[tuple[str, str]]


def split_url(url: str) -> Parts:
    """Parts of `url`. Raises ``INVALID_SETTING``, which repeats nothing that may be a password.

    Not ``urllib.parse.urlsplit``, which drops line breaks and repeats what it refuses.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        _refuse("the URL has no // behind its scheme", hint=_FORM)
    if not url.isprintable() or " " in url:
        _refuse("the URL holds white space or control characters", hint=_ENCODE)
    if "#" in rest:
        _refuse("the URL holds a #", hint=_ENCODE)
    family, _, driver = scheme.lower().partition("+")
    if driver:
        _refuse("the URL names a driver, which is not yours to choose", hint=f"write {family}://…")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if "@" in path or "@" in query:
        # The password holds what ends it, so that what follows is no host.
        _refuse("the URL has an @ behind the host", hint=_ENCODE)
    credentials, _, place = authority.rpartition("@")
    user, colon, password = credentials.partition(":")
    if "@" in password:
        _refuse("the URL has two @ before the host", hint=_ENCODE)
    host, port = _host_and_port(place)
    return Parts(
        family,
        user,
        password if colon else None,
        host,
        port,
        slash + path,
        parse_qsl(query, keep_blank_values=True),
    )


def _host_and_port(place: str) -> tuple[str, int | None]:
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            _refuse("the URL's IPv6 address has no end", hint="write [::1]:5432")
        port = rest.removeprefix(":")
    else:
        if "," in place:
            _refuse("the URL names several hosts", hint="name the one through which the database is written")
        if place.count(":") > 1:
            _refuse("the URL's host has more than one colon", hint="write an IPv6 address as [::1]")
        host, _, port = place.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        # It may be the end of a password whose user part has no @ yet.
        _refuse("the URL's port is not a number from 1 to 65535", hint=_ENCODE)
    return unquote(host), int(port) if port else None


def _refuse(message: str, *, hint: str) -> NoReturn:
    raise UserError("INVALID_SETTING", message, field="database", hint=hint)
