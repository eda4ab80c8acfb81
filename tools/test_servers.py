"""Runs a command with database servers to test with: ``python tools/test_servers.py make test``.

Starts a PostgreSQL and a MariaDB of its own in temporary folders, on free ports, and ends them with the
command. Where a variable names a server already, that one is used. As root it installs what is missing
(Debian, Ubuntu), PgBouncer too; who is not root may go without that one, whose tests are skipped then.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.pooling_proxy import PrivatePgbouncer
from support.private_servers import PrivateMariadb, PrivatePostgres, PrivateServer, is_installed

#: By variable: the server that is started where it names none, what it needs, and the package that has it.
_SERVERS: dict[str, tuple[type[PrivateServer], str]] = {
    "OSTINATO_TEST_POSTGRES_URL": (PrivatePostgres, "postgresql"),
    "OSTINATO_TEST_MARIADB_URL": (PrivateMariadb, "mariadb-server"),
}
#: Several test runs at a time, each with many nodes of a few connections.
_CONNECTIONS = "400"


def main(command: list[str]) -> int:
    """Exit code of `command`."""
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    wanted = {name: server for name, server in _SERVERS.items() if not os.environ.get(name)}
    missing = [package for kind, package in wanted.values() if not is_installed(kind)]
    if _may_install() and not is_installed(PrivatePgbouncer):
        missing.append("pgbouncer")
    _install(missing)
    # So that the servers are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    environment = dict(os.environ)
    with ExitStack() as running:
        for name, (kind, _) in wanted.items():
            environment[name] = running.enter_context(kind(settings={"max_connections": _CONNECTIONS})).url
        return subprocess.run(command, env=environment, check=False).returncode


def _may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install(packages: list[str]) -> None:
    if not packages:
        return
    if not _may_install():
        sys.exit(f"database servers to test with are missing: install {' and '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    for command in (["apt-get", "update"], install):
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
