"""A PgBouncer of a test's own in front of a PostgreSQL server: it pools transactions, no session is ours.

    with PrivatePgbouncer(database.server_url) as proxy:
        store = open_store_from_url(proxy.url_of(database.server_url.database), clock=clock)

Transactions of one client go to the server's connections in turn: what would rest on meeting the same one
again fails at once, and not only under load.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from support.private_servers import PrivateServer, binary
from support.servers import url_of_database

from ostinato.store.server.url import ServerUrl

#: Of the server's connections, for one database.
_POOL_SIZE = "8"


class PrivatePgbouncer(PrivateServer):
    """In pooling mode ``transaction``, as any user without a password."""

    programs = (("pgbouncer", "/usr/sbin"),)
    # The second exists everywhere; it refuses to run as root.
    _users = ("postgres", "nobody")
    _scheme = "postgresql"
    _superuser = _maintenance = "postgres"
    #: At once: a clean stop would wait for transactions.
    _stop_signal = signal.SIGTERM

    def __init__(self, target: ServerUrl, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings=settings)
        self._target = target

    def url_of(self, database: str) -> str:
        """URL of one of the server's databases, through the proxy."""
        return url_of_database(self.url, database)

    def _make(self) -> None:
        target = self._target
        where = {
            "host": target.socket or target.host,
            "port": str(target.port),
            "user": target.user or "postgres",
            "password": str(target.password or ""),
        }
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": _POOL_SIZE,
            "max_client_conn": "500",
            "server_round_robin": "1",
            **self.settings,
        }
        path = self.folder / "pgbouncer.ini"
        lines = [
            "[databases]",
            "* = " + " ".join(f"{name}={value}" for name, value in where.items() if value),
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        path.chmod(0o600)
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _command(self) -> list[str]:
        return [binary(self.programs[0]), str(self.folder / "pgbouncer.ini")]
