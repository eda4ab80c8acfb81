"""Database servers of a test's own: started in a folder of their own, stopped, frozen, killed, started again.

    with PrivatePostgres() as server:
        url = server.make_database("jobs")
        server.kill()
        server.start()

Binaries are those of Debian's packages or on the path. A server refuses to run as root, so that root runs
it as the packages' user. The folder is outside of pytest's, which only its owner may enter.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import psycopg
import pymysql
import pytest
from support.processes_of import is_living, send
from support.servers import connect, url_of_database

from ostinato.store.server.url import read_server_url

_START_S = 60
_STOP_S = 60
_LOOK_S = 0.02
_ANSWER_S = 2


class PrivateServer:
    """What both kinds have in common."""

    #: What makes the data and what serves them, each with the folder of Debian's package.
    programs: tuple[tuple[str, str], ...]
    #: Users of Debian's packages, best first.
    _users: Sequence[str]
    _scheme: str
    _superuser: str
    _maintenance: str
    #: What a clean stop is asked with.
    _stop_signal: signal.Signals

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are the server's own, over ours; nothing runs yet."""
        self.settings = dict(settings or {})
        self.port = _free_port()
        self._account = _account(self._users)
        self.folder = Path(tempfile.mkdtemp(prefix=f"ostinato-{self._scheme}-"))
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_made = False

    @property
    def url(self) -> str:
        """URL of the server's own database."""
        return f"{self._scheme}://{self._superuser}@127.0.0.1:{self.port}/{self._maintenance}"

    @property
    def pid(self) -> int:
        """Of the running server; for PostgreSQL of the postmaster."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it, with the data of last time, and wait until it answers."""
        assert self._process is None, "the server runs already"
        if not self._is_made:
            self._make()
            self._is_made = True
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_account()
            )
        self._until(self.answers, "answer")

    def stop(self) -> None:
        """Stop it cleanly, ending all sessions; a frozen server goes on first."""
        self._end(self._stop_signal)

    def kill(self) -> None:
        """End every process of it at once, as a crash does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop cleanly and start again, on the same port."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """No process of it runs any more; connections stay open and hear nothing."""
        send(_frozen_tree(self.pid), signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        send(_frozen_tree(self.pid), signal.SIGCONT)

    def answers(self) -> bool:
        """Whether it takes a connection now."""
        try:
            connect(read_server_url(self.url), answer_s=_ANSWER_S).close()
        except (psycopg.OperationalError, pymysql.err.MySQLError, OSError):
            return False
        return True

    def connect(self, database: str = "") -> Any:
        """A plain driver's connection, to the server's own database if none is named."""
        return connect(read_server_url(url_of_database(self.url, database or self._maintenance)))

    def give_file(self, source: Path) -> Path:
        """A copy of a file that the server alone may read, such as a key, for its settings."""
        copy = self.folder / source.name
        shutil.copyfile(source, copy)
        copy.chmod(0o600)
        if self._account is not None:
            os.chown(copy, self._account.pw_uid, self._account.pw_gid)
        return copy

    def make_database(self, name: str) -> str:
        """An empty database; gives its URL."""
        with closing(self.connect()) as connection:
            if isinstance(connection, psycopg.Connection):
                connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {name}")
        return url_of_database(self.url, name)

    def log(self) -> str:
        """The end of what the server has said."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace")[-8000:] if path.exists() else ""

    def close(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _as_account(self) -> dict[str, Any]:
        # A session of its own: a Ctrl-C at the terminal is not meant for the server.
        common: dict[str, Any] = {"start_new_session": True, "cwd": self.folder}
        if self._account is None:
            return common
        return {
            **common,
            "user": self._account.pw_uid,
            "group": self._account.pw_gid,
            "extra_groups": [],
            "env": {**os.environ, "HOME": str(self.folder), "USER": self._account.pw_name},
        }

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_START_S, **self._as_account()
        )
        assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        every = [] if process.poll() is not None else _frozen_tree(process.pid)
        if number is signal.SIGKILL:
            send(every, number)
        else:
            send(every, signal.SIGCONT)
            process.send_signal(number)
        process.wait(_STOP_S)
        end = time.monotonic() + _STOP_S
        # A zombie has ended; who it was given to may never ask for it.
        while left := [each for each in every[1:] if is_living(each)]:
            assert time.monotonic() < end, f"processes of the server go on: {left}\n{self.log()}"
            time.sleep(_LOOK_S)

    def _until(self, look: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _START_S
        while not look():
            process = self._process
            assert process is None or process.poll() is None, f"the server has ended\n{self.log()}"
            assert time.monotonic() < end, f"the server does not {what}\n{self.log()}"
            time.sleep(_LOOK_S)


class PrivatePostgres(PrivateServer):
    """PostgreSQL, whose superuser ``postgres`` needs no password."""

    programs = (("initdb", "/usr/lib/postgresql/*/bin"), ("postgres", "/usr/lib/postgresql/*/bin"))
    _users = ("postgres", "nobody")
    _scheme = "postgresql"
    _superuser = _maintenance = "postgres"
    #: Fast shutdown: sessions are ended, not waited for.
    _stop_signal = signal.SIGINT

    def _make(self) -> None:
        self._run(
            [
                binary(self.programs[0]),
                f"--pgdata={self.folder / 'data'}",
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]
        )

    def _command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "32MB",
            # The end of a process loses nothing that was written; only that of the machine would.
            "fsync": "off",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [binary(self.programs[1]), "-D", str(self.folder / "data"), *options]


class PrivateMariadb(PrivateServer):
    """MariaDB, whose user ``root`` needs no password."""

    programs = (("mariadb-install-db", "/usr/bin"), ("mariadbd", "/usr/sbin"))
    _users = ("mysql", "nobody")
    _scheme = "mariadb"
    _superuser = "root"
    _maintenance = "information_schema"
    _stop_signal = signal.SIGTERM

    def _make(self) -> None:
        self._run(
            [
                binary(self.programs[0]),
                "--no-defaults",
                f"--datadir={self.folder / 'data'}",
                # A server that starts removes what others have left where its own temporary tables are to be.
                f"--tmpdir={self.folder}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-log-file-size=16M",
            ]
        )

    def _command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self.folder / "server.sock"),
            "pid-file": str(self.folder / "server.pid"),
            "tmpdir": str(self.folder),
            "innodb-buffer-pool-size": "64M",
            "innodb-log-file-size": "16M",
            # Written at every commit, and left to the operating system: see fsync of PostgreSQL.
            "innodb-flush-log-at-trx-commit": "2",
            **self.settings,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        # --no-defaults has to be first.
        return [
            binary(self.programs[1]),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            *options,
        ]


def _frozen_tree(pid: int) -> list[psutil.Process]:
    """A server, stopped so that it starts no more children, and these, which may be groups of their own."""
    server = psutil.Process(pid)
    send([server], signal.SIGSTOP)
    return [server, *server.children(recursive=True)]


def is_installed(kind: type[PrivateServer]) -> bool:
    """Whether this machine has the programs of such a server."""
    return all(_find(name, folders) is not None for name, folders in kind.programs)


def binary(program: tuple[str, str]) -> str:
    """Path of a server's program; skips the test where it is not installed."""
    path = _find(*program)
    if path is None:
        pytest.skip(f"{program[0]} is not installed")
    return path


def _find(name: str, folders: str) -> str | None:
    """Path of a program, the newest version's; None where there is none."""
    found = [path for path in Path("/").glob(f"{folders.lstrip('/')}/{name}") if os.access(path, os.X_OK)]
    newest = max(found, key=_version, default=None)
    return str(newest) if newest is not None else shutil.which(name)


def _version(path: Path) -> int:
    number = path.parent.parent.name
    return int(number) if number.isdigit() else 0


def _account(names: Sequence[str]) -> pwd.struct_passwd | None:
    """Whom root runs a server as; None: whoever runs the test."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in names if name in known)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
