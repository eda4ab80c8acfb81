"""URLs of server databases: what they say, and how a wrong one is refused without a password in the words."""

from __future__ import annotations

import ssl

import pytest

from ostinato.errors import UserError
from ostinato.store.server.url import is_server_url, read_server_url


def test_every_part_of_a_url_is_read() -> None:
    url = read_server_url("postgresql://ada:s3cret@db.example:6543/jobs?session_lock=off&pool_size=20")
    assert (url.family, url.user, url.password) == ("postgresql", "ada", "s3cret")
    assert (url.host, url.port, url.database) == ("db.example", 6543, "jobs")
    assert (url.session_lock, url.pool_size, url.sslmode) == ("off", 20, "prefer")


@pytest.mark.parametrize(
    ("url", "family", "port"),
    [
        ("postgresql://u@host/db", "postgresql", 5432),
        ("postgres://u@host/db", "postgresql", 5432),
        ("POSTGRES://u@host/db", "postgresql", 5432),
        ("mysql://u@host/db", "mysql", 3306),
        ("mariadb://u@host/db", "mysql", 3306),
    ],
)
def test_schemes_have_their_port(url: str, family: str, port: int) -> None:
    read = read_server_url(url)
    assert is_server_url(url)
    assert (read.family, read.port, read.session_lock, read.pool_size) == (family, port, "auto", 10)


def test_user_password_and_database_are_percent_decoded() -> None:
    url = read_server_url("mysql://a%40b:p%2F%40%3A%23%3F%25@host/my%20jobs")
    assert (url.user, url.password, url.database) == ("a@b", "p/@:#?%", "my jobs")


def test_a_password_may_be_missing_or_empty() -> None:
    assert read_server_url("mysql://u@h/d").password is None
    assert read_server_url("mysql://u:@h/d").password == ""


def test_an_ipv6_address_stands_in_brackets() -> None:
    url = read_server_url("postgresql://u@[::1]:6543/db")
    assert (url.host, url.port, url.shown) == ("::1", 6543, "postgresql://[::1]:6543/db")
    assert read_server_url("postgresql://u@[::1]/db").port == 5432


@pytest.mark.parametrize(
    ("url", "socket", "port"),
    [
        ("postgresql:///db?host=/run/postgresql", "/run/postgresql", 5432),
        ("postgresql://u@%2Frun%2Fpostgresql:6543/db", "/run/postgresql", 6543),
        ("postgresql:///db?socket=/run/postgresql/.s.PGSQL.6543", "/run/postgresql", 6543),
        ("mysql://u@/db?unix_socket=/run/mysqld/mysqld.sock", "/run/mysqld/mysqld.sock", 3306),
    ],
)
def test_a_unix_socket_replaces_host_and_port(url: str, socket: str, port: int) -> None:
    read = read_server_url(url)
    assert (read.socket, read.port) == (socket, port)
    assert read.sqlalchemy_url().host is None
    expected = {"host": socket, "port": port} if read.family == "postgresql" else {"unix_socket": socket}
    assert expected.items() <= read.connect_arguments().items()


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("postgresql://u@h/d", "prefer"),
        ("mysql://u@h/d", "disable"),
        ("postgresql://u@h/d?sslrootcert=ca.pem", "verify-full"),
        ("mysql://u@h/d?ssl_ca=ca.pem", "verify-full"),
        ("mysql://u@h/d?ssl_cert=c.pem&ssl_key=k.pem", "require"),
        ("mysql://u@h/d?ssl_mode=verify-ca&ssl_ca=ca.pem", "verify-ca"),
    ],
)
def test_who_names_an_authority_wants_it_asked(url: str, mode: str) -> None:
    assert read_server_url(url).sslmode == mode


@pytest.mark.parametrize(
    ("mode", "verifies", "checks_name"),
    [
        ("require", ssl.CERT_NONE, False),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("verify-full", ssl.CERT_REQUIRED, True),
    ],
)
def test_a_mode_of_tls_becomes_a_context(mode: str, verifies: ssl.VerifyMode, checks_name: bool) -> None:
    for scheme in ("postgresql", "mysql"):
        context = read_server_url(f"{scheme}://u@h/d?sslmode={mode}").connect_arguments()["ssl"]
        assert isinstance(context, ssl.SSLContext)
        assert (context.verify_mode, context.check_hostname) == (verifies, checks_name)


def test_a_missing_certificate_is_a_wrong_setting() -> None:
    with pytest.raises(UserError) as caught:
        read_server_url("mysql://u:s3cret@h/d?ssl_ca=/nowhere/ca.pem").connect_arguments()
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "database")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://u:s3cret@host", "no database"),
        ("postgresql://u:s3cret@host/", "no database"),
        ("postgresql://u:s3cret@host/a/b", "more than the name"),
        ("postgresql+psycopg://u:s3cret@host/db", "driver"),
        ("mysql://host/db", "no user"),
        ("mysql:u:s3cret@host/db", "no //"),
        ("mysql://u:s3cret/x@host/db", "@ behind the host"),
        ("mysql://u:s3cret@x@host/db", "two @"),
        ("mysql://u:s3cret#x@host/db", "#"),
        ("mysql://u:s3cret/x", "port"),
        ("mysql://u@host:0/db", "port"),
        ("mysql://u@host:99999/db", "port"),
        ("mysql://u:s3cret@host\n/db", "control"),
        ("mysql://u:s3cret @host/db", "white space"),
        ("postgresql://u:s3cret@::1/db", "colon"),
        ("postgresql://u:s3cret@[::1/db", "no end"),
        ("postgresql://u:s3cret@one,two/db", "several hosts"),
        ("postgresql://u:s3cret@h/db?sslmod=require", "'sslmod'"),
        ("postgresql://u:s3cret@h/db?host=other", "'host'"),
        ("postgresql://u:s3cret@h/db?password=s3cret", "'password'"),
        ("postgresql://u:s3cret@h/db?sslmode=allow", "sslmode"),
        ("mysql://u:s3cret@h/db?sslmode=prefer", "sslmode"),
        ("mysql://u:s3cret@h/db?sslmode=require&ssl_mode=require", "twice"),
        ("mysql://u:s3cret@h/db?pool_size=", "no value"),
        ("mysql://u:s3cret@h/db?pool_size=3", "pool_size"),
        ("mysql://u:s3cret@h/db?pool_size=1e3", "pool_size"),
        ("mysql://u:s3cret@h/db?session_lock=on", "session_lock"),
        ("mysql://u:s3cret@h/db?sslmode=require&ssl_ca=ca.pem", "ssl_ca"),
        ("postgresql://u:s3cret@h/db?sslmode=disable&ssl_ca=ca.pem", "disable"),
        ("mysql://u:s3cret@h/db?ssl_key=k.pem", "ssl_key"),
        ("mysql://u@h/db?socket=relative.sock", "absolute"),
        ("postgresql:///db?socket=/run/.s.PGSQL.x", "no port"),
        ("oracle://u:s3cret@h/db", "'oracle'"),
    ],
)
def test_a_wrong_url_is_refused_and_no_password_repeated(url: str, word: str) -> None:
    with pytest.raises(UserError) as caught:
        read_server_url(url)
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "database")
    assert word in caught.value.message
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_a_url_shows_neither_user_nor_password() -> None:
    url = read_server_url("mysql://ada:s3cret@h/d")
    assert url.shown == "mysql://h:3306/d"
    assert "s3cret" not in repr(url)
