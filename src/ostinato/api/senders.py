"""Who sends a request: this machine, and no page that a browser of this machine shows.

Requests whose ``Host`` is no loopback name come from a page that has rebound its own name (DNS rebinding);
those with another ``Origin`` or with ``Sec-Fetch-Site: cross-site`` come from a foreign page (CSRF).
"""

from __future__ import annotations

import re

from ostinato.api.asgi import Message, header
from ostinato.errors import UserError
from ostinato.settings_readers import is_loopback

_LOOPBACK_NAMES = frozenset({"localhost.localdomain", "ip6-localhost"})
_SITES = frozenset({"same-origin", "none"})
#: RFC 9110: ``uri-host [":" port]`` and nothing else; of the names only those that a loopback one may be.
_HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9.-]{1,255}))(?::([0-9]{0,5}))?", re.ASCII)
_PORT_MAX = 65_535


def require_own_sender(scope: Message) -> None:
    """Raise ``HOST_REFUSED`` for a request that a foreign page may have sent; see the module."""
    hosts = header(scope, b"host")
    if len(hosts) != 1 or not is_own_host(hosts[0]):
        raise _foreign_host(hosts)
    for origin in header(scope, b"origin"):
        if not _is_own_origin(origin, host=hosts[0]):
            raise _host_refused(f"the page {origin[:200]!a} is not of this API", "origin")
    for site in header(scope, b"sec-fetch-site"):
        if site not in _SITES:
            raise _host_refused("a page of another site has sent the request", "sec-fetch-site")


def require_own_host(scope: Message) -> None:
    """Raise ``HOST_REFUSED`` if another host is named; probes of HTTP/1.0 name none, browsers always do."""
    hosts = header(scope, b"host")
    if hosts and (len(hosts) != 1 or not is_own_host(hosts[0])):
        raise _foreign_host(hosts)


def is_own_host(host: str) -> bool:
    """Whether a ``Host`` is a loopback name or address, with or without a port."""
    found = _HOST.fullmatch(host.lower())
    if found is None or int(found[3] or 0) > _PORT_MAX:
        return False
    if found[1] is not None:
        return is_loopback(found[1])
    return found[2] in _LOOPBACK_NAMES or is_loopback(found[2])


def _is_own_origin(origin: str, *, host: str) -> bool:
    scheme, separator, named = origin.partition("://")
    return scheme in ("http", "https") and bool(separator) and named.lower() == host.lower()


def _foreign_host(hosts: list[str]) -> UserError:
    return _host_refused(
        f"the host {', '.join(hosts)[:200]!a} is not this machine",
        "host",
        hint="ask for localhost or 127.0.0.1, through a tunnel from elsewhere",
    )


def _host_refused(message: str, field: str, *, hint: str = "") -> UserError:
    return UserError("HOST_REFUSED", message, field=field, hint=hint)
