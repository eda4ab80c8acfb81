"""What a URL says of sockets and TLS holds on real servers, for the administrator and for the stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import Certificate, self_signed, signed
from support.private_servers import PrivateMariadb, PrivatePostgres, PrivateServer

from ostinato.clock import SystemClock
from ostinato.errors import OstinatoError
from ostinato.store.administration import administrator_of
from ostinato.store.from_url import open_store_from_url
from ostinato.store.migrations import HEAD_REVISION

_KINDS = {"postgresql": PrivatePostgres, "mariadb": PrivateMariadb}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Certificate:
    return self_signed(folder, "authority")


@pytest.fixture(scope="module", params=_KINDS)
def server(request: pytest.FixtureRequest, folder: Path, authority: Certificate) -> Iterator[PrivateServer]:
    """With a certificate for this machine, that is asked for by nobody who does not want it."""
    running: PrivateServer = _KINDS[request.param]()
    made = signed(folder, authority, f"server-{request.param}")
    certificate, key = running.give_file(made.certificate), running.give_file(made.key)
    if isinstance(running, PrivatePostgres):
        running.settings |= {"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(key)}
    else:
        running.settings |= {"ssl-cert": str(certificate), "ssl-key": str(key)}
    with running:
        running.make_database("jobs")
        yield running


def _url(server: PrivateServer, parameters: str, *, host: str = "127.0.0.1") -> str:
    place = f"{host}:{server.port}" if host else ""
    user = "postgres" if isinstance(server, PrivatePostgres) else "root"
    scheme = "postgresql" if isinstance(server, PrivatePostgres) else "mariadb"
    return f"{scheme}://{user}@{place}/jobs?{parameters}"


async def _check_use(url: str) -> None:
    """As commands do, and as nodes do."""
    facts = await administrator_of(url, clock=SystemClock()).upgrade(HEAD_REVISION, partition_count=4)
    assert facts.partitions == 4
    store = open_store_from_url(url, clock=SystemClock())
    try:
        await store.open()
        assert store.partition_count == 4
    finally:
        await store.close()


async def test_a_unix_socket_leads_to_the_server(server: PrivateServer) -> None:
    if isinstance(server, PrivatePostgres):
        path = server.folder / f".s.PGSQL.{server.port}"
        await _check_use(_url(server, f"host={server.folder}").replace("@/", f"@:{server.port}/"))
    else:
        path = server.folder / "server.sock"
    await _check_use(_url(server, f"socket={path}", host=""))


@pytest.mark.parametrize("parameters", ["", "sslmode=disable", "sslmode=require"])
async def test_who_does_not_ask_for_a_name_gets_on_without_an_authority(
    server: PrivateServer, parameters: str
) -> None:
    await _check_use(_url(server, parameters).removesuffix("?"))


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
async def test_the_authority_is_asked(
    server: PrivateServer, folder: Path, authority: Certificate, mode: str
) -> None:
    await _check_use(_url(server, f"sslmode={mode}&ssl_ca={authority.certificate}"))
    stranger = self_signed(folder, "stranger")
    with pytest.raises(OstinatoError) as caught:
        await _check_use(_url(server, f"sslmode={mode}&ssl_ca={stranger.certificate}"))
    assert caught.value.code in ("DATABASE_UNUSABLE", "DATABASE_UNAVAILABLE")
    assert "certificate" in caught.value.message.lower()


async def test_the_name_is_looked_at_only_in_full(
    server: PrivateServer, folder: Path, authority: Certificate
) -> None:
    # 127.0.0.2 is this machine too, and not in the certificate.
    elsewhere = {"host": "127.0.0.2"}
    setting = "listen_addresses" if isinstance(server, PrivatePostgres) else "bind-address"
    server.settings[setting] = "127.0.0.1,127.0.0.2"
    server.restart()
    await _check_use(_url(server, f"sslmode=verify-ca&ssl_ca={authority.certificate}", **elsewhere))
    with pytest.raises(OstinatoError) as caught:
        await _check_use(_url(server, f"sslmode=verify-full&ssl_ca={authority.certificate}", **elsewhere))
    assert "certificate" in caught.value.message.lower()
