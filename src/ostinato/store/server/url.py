"""A server database's URL, read into what drivers need; the parameters of ours are read with it.

``postgresql://user:password@host:5432/database?sslmode=verify-full&ssl_ca=ca.pem&session_lock=off`` and the
like, with ``postgres``, ``mysql`` and ``mariadb`` too. Whatever is wrong is refused without a word of what
may be a password.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Literal, NoReturn, TypedDict, cast
from urllib.parse import unquote

import msgspec

from ostinato.core.secret import Secret
from ostinato.errors import UserError
from ostinato.store.server.url_parts import Parts, split_url

if TYPE_CHECKING:
    from ssl import SSLContext

    from sqlalchemy.engine import URL

Family = Literal["postgresql", "mysql"]
SslMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]

#: MariaDB and MySQL share an adapter, which learns at the first connection which one answers.
SCHEMES: dict[str, Family] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_PORTS: dict[Family, int] = {"postgresql": 5432, "mysql": 3306}
_SSL_MODES: dict[Family, tuple[SslMode, ...]] = {
    "postgresql": ("disable", "prefer", "require", "verify-ca", "verify-full"),
    # Its driver cannot go on without TLS once it has asked for it.
    "mysql": ("disable", "require", "verify-ca", "verify-full"),
}
#: What others call the same: libpq's words for PostgreSQL, and those of MySQL's clients.
_ALIASES = {
    "sslrootcert": "ssl_ca",
    "sslcert": "ssl_cert",
    "sslkey": "ssl_key",
    "ssl_mode": "sslmode",
    "unix_socket": "socket",
}
PARAMETERS = ("sslmode", "ssl_ca", "ssl_cert", "ssl_key", "socket", "session_lock", "pool_size")
#: Connections of one store where nothing is said, and how few and many may be said.
POOL_SIZE = 10
POOL_SIZE_MIN, POOL_SIZE_MAX = 4, 200


class ServerUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server database is, and how it is to be used."""

    family: Family
    database: str
    #: Empty: the driver's default, which for PostgreSQL is the user of the operating system.
    user: str = ""
    #: None: none is said, and the driver may know one (``PGPASSWORD``, ``~/.pgpass``).
    password: Secret | None = None
    host: str = "localhost"
    port: int
    #: Path of a Unix socket instead of host and port: for PostgreSQL the folder of the socket.
    socket: str = ""
    sslmode: SslMode
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    #: ``off`` behind a proxy that pools transactions, where a session is nobody's.
    session_lock: Literal["auto", "off"] = "auto"
    #: Connections of one store, whatever they are for.
    pool_size: int = POOL_SIZE

    @property
    def shown(self) -> str:
        """Where the database is, for messages: neither user nor password nor parameters."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = f"{self.socket}:" if self.socket else f"{host}:{self.port}/"
        return f"{self.family}://{place}{self.database}"

    def sqlalchemy_url(self) -> URL:
        """The same for ``create_async_engine``, which takes `connect_arguments` beside it."""
        from sqlalchemy.engine import URL

        return URL.create(
            "postgresql+asyncpg" if self.family == "postgresql" else "mysql+asyncmy",
            username=self.user or None,
            password=self.password,
            host=None if self.socket else self.host,
            port=None if self.socket else self.port,
            database=self.database,
        )

    def connect_arguments(self) -> dict[str, object]:
        """What the driver's ``connect`` needs beyond the URL: socket, TLS and MySQL's password as bytes.

        Raises ``INVALID_SETTING`` where a certificate's file cannot be used.
        """
        arguments: dict[str, object] = {}
        if self.socket and self.family == "postgresql":
            # The port is part of the socket's name.
            arguments |= {"host": self.socket, "port": self.port}
        elif self.socket:
            arguments["unix_socket"] = self.socket
        if self.family == "mysql" and self.password:
            # The driver would write a text in Latin-1, or fail at it; the servers hash its UTF-8.
            arguments["password"] = self.password.encode()
        if self.socket or self.sslmode == "disable":
            return arguments | ({"ssl": False} if self.family == "postgresql" else {})
        if self.sslmode == "prefer":
            return arguments | {"ssl": "prefer"}
        return arguments | {"ssl": self._ssl_context()}

    def _ssl_context(self) -> SSLContext:
        """``require`` encrypts, ``verify-ca`` asks who signed, ``verify-full`` also for whom."""
        # Late, like SQLAlchemy: a URL is read by every command.
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ssl_ca or None)
            if self.ssl_cert:
                context.load_cert_chain(self.ssl_cert, self.ssl_key or None)
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                "INVALID_SETTING",
                f"the certificates of {self.shown} cannot be used: {error.strerror or error}",
                subject=self.shown,
                field="database",
                hint="ssl_ca, ssl_cert and ssl_key name files in PEM form",
            ) from error
        context.check_hostname = self.sslmode == "verify-full"
        if self.sslmode == "require":
            context.verify_mode = ssl.CERT_NONE
        return context


def is_server_url(url: str) -> bool:
    """Whether the URL's scheme, in any case and with any ``+driver``, is that of a server database."""
    return url.partition(":")[0].partition("+")[0].lower() in SCHEMES


def read_server_url(url: str) -> ServerUrl:
    """What `url` says.

    Raises ``INVALID_SETTING`` with the field ``database``, in which no password is repeated.
    """
    parts = split_url(url)
    if parts.scheme not in SCHEMES:
        _refuse(f"{parts.scheme!r} is no server database", hint=f"schemes are {', '.join(SCHEMES)}")
    family = SCHEMES[parts.scheme]
    parameters = _parameters(parts)
    socket, port = _socket(family, parts, parameters.pop("socket", ""))
    return ServerUrl(
        family=family,
        database=_database(parts),
        user=_user(family, parts),
        password=None if parts.password is None else Secret(unquote(parts.password)),
        host=parts.host or "localhost",
        port=port,
        socket=socket,
        session_lock=cast(
            Literal["auto", "off"], _choice("session_lock", parameters.get("session_lock"), ("auto", "off"))
        ),
        pool_size=_pool_size(parameters.get("pool_size")),
        **_tls(family, parameters),
    )


def _parameters(parts: Parts) -> dict[str, str]:
    """Every parameter under our name for it, each known, said once, and with a value."""
    parameters: dict[str, str] = {}
    for said, value in parts.parameters:
        # libpq's way of naming a socket, which is a path and no host.
        name = "socket" if said == "host" and value.startswith("/") else _ALIASES.get(said, said)
        if name not in PARAMETERS:
            _refuse(f"the URL's parameter {said[:40]!a} is not known", hint=f"known: {', '.join(PARAMETERS)}")
        if name in parameters:
            _refuse(f"the URL says {name} twice", hint="leave one out")
        if not value:
            _refuse(f"the URL's parameter {said} has no value", hint=f"write {said}=…")
        parameters[name] = value
    return parameters


def _database(parts: Parts) -> str:
    name = unquote(parts.path.removeprefix("/"))
    if not name:
        _refuse("the URL names no database", hint="write it behind the host, as in …@host:5432/ostinato")
    if "/" in name:
        _refuse("the URL's path holds more than the name of a database", hint="leave out all behind it")
    return name


def _user(family: Family, parts: Parts) -> str:
    user = unquote(parts.user)
    if not user and family == "mysql":
        _refuse("the URL names no user", hint="write mysql://user:password@host/database")
    return user


def _socket(family: Family, parts: Parts, said: str) -> tuple[str, int]:
    """Path of the Unix socket, empty for none, and the port; PostgreSQL's socket has its port in its name."""
    path = said or (parts.host if parts.host.startswith("/") else "")
    port = _PORTS[family] if parts.port is None else parts.port
    if path and not path.startswith("/"):
        _refuse("the Unix socket of the URL is not an absolute path", hint="write socket=/run/…")
    if family == "postgresql" and posixpath.basename(path).startswith(".s.PGSQL."):
        path, _, number = path.rpartition("/.s.PGSQL.")
        if not (number.isascii() and number.isdigit()):
            _refuse("the Unix socket of the URL has no port in its name", hint="name the socket's folder")
        port = int(number)
    return path, port


class _Tls(TypedDict):
    sslmode: SslMode
    ssl_ca: str
    ssl_cert: str
    ssl_key: str


def _tls(family: Family, parameters: dict[str, str]) -> _Tls:
    """Who names a certificate authority wants it asked; without a word TLS is tried where the driver can."""
    ca, cert, key = (parameters.get(name, "") for name in ("ssl_ca", "ssl_cert", "ssl_key"))
    modes = _SSL_MODES[family]
    default: SslMode = "verify-full" if ca else "require" if cert else modes[0]
    if family == "postgresql" and not ca and not cert:
        default = "prefer"
    mode = cast(SslMode, _choice("sslmode", parameters.get("sslmode", default), modes))
    if mode in ("disable", "prefer") and (ca or cert):
        _refuse(f"sslmode {mode} asks for no certificate", hint="leave out ssl_ca and ssl_cert, or sslmode")
    if ca and mode == "require":
        _refuse("sslmode require does not look at ssl_ca", hint="write sslmode=verify-full")
    if key and not cert:
        _refuse("ssl_key is the key of no certificate", hint="name the certificate in ssl_cert")
    return {"sslmode": mode, "ssl_ca": ca, "ssl_cert": cert, "ssl_key": key}


def _pool_size(value: str | None) -> int:
    if value is None:
        return POOL_SIZE
    if not (value.isascii() and value.isdigit() and POOL_SIZE_MIN <= int(value[:6]) <= POOL_SIZE_MAX):
        _refuse(
            f"pool_size is {value[:20]!a}", hint=f"write a number from {POOL_SIZE_MIN} to {POOL_SIZE_MAX}"
        )
    return int(value)


def _choice(name: str, value: str | None, allowed: tuple[str, ...]) -> str:
    if value is not None and value not in allowed:
        _refuse(f"{name} is {value[:20]!a}", hint=f"write one of {', '.join(allowed)}")
    return allowed[0] if value is None else value


def _refuse(message: str, *, hint: str) -> NoReturn:
    raise UserError("INVALID_SETTING", message, field="database", hint=hint)
