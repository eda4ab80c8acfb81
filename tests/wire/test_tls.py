"""TLS of the worker stream: who gets through, what the others are told, and what files are refused."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.certificates import Certificate, openssl, self_signed, signed

from ostinato.clock import SystemClock
from ostinato.errors import UnavailableError, UserError
from ostinato.testing.contracts.transport import TransportContract
from ostinato.testing.contracts.transport_harness import Links
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.grpc_server import GrpcNodeTransport
from ostinato.wire.messages import Draining
from ostinato.wire.protocol import NodeStream, NodeTransport, WorkerTransport
from ostinato.wire.tls import NodeTls, TlsFile, WorkerTls


def _node_tls(made: Certificate) -> NodeTls:
    return NodeTls(
        TlsFile(made.certificate, "--tls-certificate"),
        TlsFile(made.key, "OSTINATO_TLS_KEY"),
        wall_us=SystemClock().wall_us,
    )


def _worker_tls(path: Path, *, server_name: str = "") -> WorkerTls:
    return WorkerTls(TlsFile(path, "--tls-ca"), server_name=server_name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def certificate(folder: Path) -> Certificate:
    return self_signed(folder)


@pytest.fixture(scope="module")
def other(folder: Path) -> Certificate:
    return self_signed(folder, "other")


class TlsLinks:
    def __init__(self, certificate: Certificate) -> None:
        self._certificate = certificate

    def node_transport(self, address: str | None = None) -> NodeTransport:
        return GrpcNodeTransport(address or "127.0.0.1:0", tls=_node_tls(self._certificate))

    def worker_transport(self) -> WorkerTransport:
        return GrpcWorkerTransport(tls=_worker_tls(self._certificate.certificate))

    def dead_address(self) -> str:
        return "127.0.0.1:1"


class TestTls(TransportContract):
    """All that holds without TLS holds with it."""

    @pytest.fixture
    def links(self, certificate: Certificate) -> Links:
        return TlsLinks(certificate)


async def _until_closed(stream: NodeStream) -> None:
    try:
        while True:
            await stream.receive()
    except UnavailableError:
        return  # the worker has gone, which is the end of the test


@asynccontextmanager
async def _listening(tls: NodeTls | None) -> AsyncIterator[str]:
    node = GrpcNodeTransport("127.0.0.1:0", tls=tls)
    address = await node.start(_until_closed)
    try:
        yield address
    finally:
        await node.stop()


async def _says(address: str, tls: WorkerTls | None) -> str:
    """What a worker that does not get through is told, which does not take the time-out."""
    worker = GrpcWorkerTransport(tls=tls)
    begin = time.monotonic()
    with pytest.raises(UnavailableError) as caught:
        await worker.connect(address)
    assert caught.value.code == "SCHEDULER_UNREACHABLE"
    assert address in caught.value.message
    assert time.monotonic() - begin < 4
    await worker.close()
    return str(caught.value)


async def _gets_through(address: str, tls: WorkerTls) -> None:
    worker = GrpcWorkerTransport(tls=tls)
    stream = await worker.connect(address)
    await stream.send([Draining("only looking")])
    await worker.close()


# ── who gets through ──────────────────────────────────────────────────────────────────────────────────


async def test_a_certificate_of_the_authority_is_accepted_and_of_another_one_not(
    folder: Path, other: Certificate, certificate: Certificate
) -> None:
    async with _listening(_node_tls(signed(folder, other))) as address:
        await _gets_through(address, _worker_tls(other.certificate))
        assert "not the expected one" in await _says(address, _worker_tls(certificate.certificate))


async def test_a_certificate_for_another_name_is_accepted_under_that_name(folder: Path) -> None:
    named = self_signed(folder, "named", names="DNS:scheduler.example")
    async with _listening(_node_tls(named)) as address:
        await _gets_through(address, _worker_tls(named.certificate, server_name="scheduler.example"))
        said = await _says(address, _worker_tls(named.certificate))
        assert "its certificate is not for that host" in said
        assert "--tls-server-name" in said
        said = await _says(address, _worker_tls(named.certificate, server_name="else.example"))
        assert "its certificate is not for else.example" in said


async def test_a_worker_with_another_authority_is_told_that_the_certificate_is_not_the_expected_one(
    certificate: Certificate, other: Certificate
) -> None:
    async with _listening(_node_tls(certificate)) as address:
        said = await _says(address, _worker_tls(other.certificate))
    assert "not the expected one (self signed certificate)" in said
    assert "--tls-ca" in said


async def test_a_worker_with_tls_is_told_that_the_scheduler_has_none(certificate: Certificate) -> None:
    async with _listening(None) as address:
        said = await _says(address, _worker_tls(certificate.certificate))
    assert "it does not speak TLS" in said
    assert "--tls-certificate" in said


async def test_a_worker_without_tls_is_told_to_try_it(certificate: Certificate) -> None:
    async with _listening(_node_tls(certificate)) as address:
        assert "give --tls-ca" in await _says(address, None)


async def test_an_expired_certificate_is_a_warning_to_the_scheduler_and_refused_by_the_worker(
    folder: Path, other: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    expired = signed(folder, other, "expired", days=-1)
    with caplog.at_level(logging.WARNING):
        tls = _node_tls(expired)
    [warning] = caplog.records
    assert warning.getMessage() == "certificate_expired"
    ended = datetime.fromisoformat(vars(warning)["ended"])
    assert 0 < (datetime.now(UTC) - ended).total_seconds() - 86_400 < 600
    async with _listening(tls) as address:
        said = await _says(address, _worker_tls(other.certificate))
    assert "its certificate has expired" in said


# ── renewal ───────────────────────────────────────────────────────────────────────────────────────────


def _replace(made: Certificate, by: Certificate) -> None:
    for old, new in zip(made, by, strict=True):
        shutil.copy(new, f"{old}.new")
        Path(f"{old}.new").rename(old)


async def test_a_renewed_certificate_is_shown_and_trusted_without_a_restart(
    tmp_path: Path, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    used = self_signed(tmp_path)
    worker_copy = Path(shutil.copy(used.certificate, tmp_path / "trusted.pem"))
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(_listening(_node_tls(used)))
        worker = GrpcWorkerTransport(tls=_worker_tls(worker_copy))
        stack.push_async_callback(worker.close)
        await worker.connect(address)
        with caplog.at_level(logging.INFO):
            _replace(used, certificate)
            with pytest.raises(UnavailableError, match="not the expected one"):
                await worker.connect(address)
            shutil.copy(certificate.certificate, worker_copy)
            await worker.connect(address)
    # What gRPC's own loop complains of to asyncio is no word of ours.
    said = [record.getMessage() for record in caplog.records if record.name != "asyncio"]
    assert said == ["certificate_renewed"]


async def test_a_renewal_that_cannot_be_used_leaves_the_old_certificate(
    tmp_path: Path, other: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    used = self_signed(tmp_path)
    trusted = _worker_tls(Path(shutil.copy(used.certificate, tmp_path / "trusted.pem")))
    async with _listening(_node_tls(used)) as address:
        shutil.copy(other.certificate, used.certificate)
        await _gets_through(address, trusted)
        [record] = caplog.records
        assert record.getMessage() == "certificate_refused"
        assert "is not the key of" in vars(record)["reason"]
        shutil.copy(other.key, used.key)
        await _gets_through(address, _worker_tls(other.certificate))


async def test_a_worker_whose_file_is_gone_says_so_and_may_try_again(
    tmp_path: Path, certificate: Certificate
) -> None:
    trusted = Path(shutil.copy(certificate.certificate, tmp_path / "trusted.pem"))
    tls = _worker_tls(trusted)
    shutil.move(trusted, tmp_path / "away.pem")
    async with _listening(_node_tls(certificate)) as address:
        said = await _says(address, tls)
    assert f"--tls-ca: {trusted} cannot be read: No such file" in said


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────


def _refused(made: Certificate) -> UserError:
    with pytest.raises(UserError) as caught:
        _node_tls(made)
    assert caught.value.code == "INVALID_SETTING"
    return caught.value


def test_a_missing_file_is_named_with_its_setting(certificate: Certificate, tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"
    refusal = _refused(Certificate(absent, certificate.key))
    assert str(refusal) == f"--tls-certificate: {absent} cannot be read: No such file or directory"
    assert _refused(Certificate(certificate.certificate, absent)).field == "OSTINATO_TLS_KEY"


def test_the_key_of_another_certificate_is_refused(certificate: Certificate, other: Certificate) -> None:
    refusal = _refused(Certificate(certificate.certificate, other.key))
    assert refusal.field == "OSTINATO_TLS_KEY"
    assert refusal.message == f"{other.key} is not the key of {certificate.certificate}"


def test_certificate_and_key_that_are_swapped_are_told_apart(certificate: Certificate) -> None:
    refusal = _refused(Certificate(certificate.key, certificate.certificate))
    assert "holds no certificate" in refusal.message
    refusal = _refused(Certificate(certificate.certificate, certificate.certificate))
    assert "holds no private key" in refusal.message


def test_a_file_in_another_form_is_refused_with_how_to_convert_it(
    certificate: Certificate, tmp_path: Path
) -> None:
    binary = tmp_path / "certificate.der"
    openssl("x509", "-in", certificate.certificate, "-outform", "DER", "-out", binary)
    refusal = _refused(Certificate(binary, certificate.key))
    assert "is not in PEM form" in refusal.message
    assert "openssl" in refusal.hint
    with pytest.raises(UserError, match="is not in PEM form"):
        _worker_tls(binary)


def test_a_damaged_file_is_refused(certificate: Certificate, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pem"
    lines = certificate.certificate.read_text().splitlines()
    damaged.write_text("\n".join([*lines[:3], *lines[-1:]]))
    assert "damaged certificate" in _refused(Certificate(damaged, certificate.key)).message
    with pytest.raises(UserError, match="damaged certificate"):
        _worker_tls(damaged)
    damaged.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert "cannot be used with" in _refused(Certificate(certificate.certificate, damaged)).message


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_password(
    certificate: Certificate, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    openssl("pkey", "-in", certificate.key, "-aes256", "-passout", "pass:secret", "-out", locked)
    assert "is encrypted" in _refused(Certificate(certificate.certificate, locked)).message


def test_a_kind_of_key_that_grpc_cannot_use_is_refused(tmp_path: Path) -> None:
    made = Certificate(tmp_path / "ed25519.pem", tmp_path / "ed25519.key")
    openssl("genpkey", "-algorithm", "ed25519", "-out", made.key)
    openssl("req", "-x509", "-key", made.key, "-subj", "/CN=x", "-out", made.certificate)
    assert "Ed25519" in _refused(made).message


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def documented(tmp_path: Path) -> Certificate:
    """Files made by the first block of commands of the section."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## Workers on other machines\n")[2]
    commands = section.partition("```sh\n")[2].partition("```")[0]
    subprocess.run(["sh", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    return Certificate(tmp_path / "scheduler.pem", tmp_path / "scheduler.key")


async def test_what_the_operations_page_says_makes_files_that_work(documented: Certificate) -> None:
    trusted = documented.certificate
    async with _listening(_node_tls(documented)) as address:
        await _gets_through(address, _worker_tls(trusted, server_name="scheduler.example.com"))
        await _gets_through(address, _worker_tls(trusted, server_name="192.0.2.10"))
    token = trusted.with_name("join-token")
    assert len(token.read_text().strip()) == 64
    for secret in (token, documented.key):
        assert secret.stat().st_mode & 0o077 == 0
