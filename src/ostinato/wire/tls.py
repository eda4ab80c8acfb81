"""TLS of the worker stream: PEM files, read and checked so that an error names the file and what is wrong.

The scheduler shows a certificate, and the worker decides whether that is the one it expects. Workers have no
certificates; they show the join token. Both sides look at files that have changed, so a certificate is
renewed without a restart: by the scheduler at the next handshake, by a worker when it dials the next time.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, NoReturn

from ostinato.core.instants import SECOND
from ostinato.errors import UserError
from ostinato.wire.grpc_library import grpc

_log = logging.getLogger("ostinato.wire")

#: OID of Ed25519, a kind of signature that gRPC does not offer.
_ED25519 = bytes.fromhex("06032b6570")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
#: Tags of ASN.1: the version of a certificate, and a time with two digits of the year.
_VERSION, _SHORT_TIME = 0xA0, 0x17


class TlsFile(NamedTuple):
    """A PEM file, and what errors call the setting that named it."""

    path: Path
    field: str


class NodeTls:
    """The certificate of a scheduler with its private key.

    Raises ``INVALID_SETTING`` unless they can be used together. A certificate whose time is over is only
    warned about: it is the workers that decide, and they will say so.
    """

    def __init__(self, certificate: TlsFile, key: TlsFile, *, wall_us: Callable[[], int]) -> None:
        self._certificate = certificate
        self._key = key
        self._wall_us = wall_us
        self._stamps = self._current_stamps()
        self._configuration = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials that follow the files. Where changed files cannot be used, the old content stays."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._renewed,  # type: ignore[arg-type]  # gRPC says None for "as it was", its stubs do not
            require_client_authentication=False,
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What gRPC asks for before each handshake, in its own thread; None where nothing has changed."""
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        try:
            configuration = self._read()
        except UserError as error:
            _log.error("certificate_refused", extra={"reason": str(error)})
            return None
        _log.info("certificate_renewed", extra={"path": str(self._certificate.path)})
        return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        chain, key = _text(self._certificate), _text(self._key)
        leaf_pem = _require_certificate(self._certificate, chain)
        _require_key(self._key, key, certificate=self._certificate)
        leaf = ssl.PEM_cert_to_DER_cert(leaf_pem)
        if _ED25519 in leaf:
            _refuse(
                self._certificate, "has an Ed25519 key, which gRPC cannot use", hint="make one with P-256"
            )
        end = _end_of_validity(leaf)
        if end.timestamp() * SECOND <= self._wall_us():
            told = {"path": str(self._certificate.path), "ended": end.isoformat()}
            _log.warning("certificate_expired", extra=told)
        return grpc.ssl_server_certificate_configuration([(key.encode(), chain.encode())])

    def _current_stamps(self) -> list[tuple[int, int] | None]:
        return [_stamp(file.path) for file in (self._certificate, self._key)]


class WorkerTls:
    """What a worker trusts: the scheduler's own certificate, or those of authorities.

    `server_name` is the name in the scheduler's certificate where that is not the host dialled; empty: it is.
    Raises ``INVALID_SETTING`` for a file that holds no certificate.
    """

    def __init__(self, authorities: TlsFile, *, server_name: str = "") -> None:
        self._authorities = authorities
        self.server_name = server_name
        self.credentials()

    def credentials(self) -> grpc.ChannelCredentials:
        """Credentials from the file as it is now."""
        text = _text(self._authorities)
        _require_certificate(self._authorities, text)
        return grpc.ssl_channel_credentials(text.encode())


def end_of_validity_us(file: TlsFile) -> int:
    """When the first certificate of the file ends to be valid. Raises ``INVALID_SETTING`` as above."""
    leaf = ssl.PEM_cert_to_DER_cert(_require_certificate(file, _text(file)))
    return int(_end_of_validity(leaf).timestamp()) * SECOND


def _text(file: TlsFile) -> str:
    try:
        return file.path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        _refuse(file, "is not in PEM form", hint="openssl x509 -inform DER, or openssl pkey, converts it")
    except OSError as error:
        _refuse(file, f"cannot be read: {error.strerror or error}")


def _require_certificate(file: TlsFile, text: str) -> str:
    """The first certificate of the file."""
    found = _CERTIFICATE.search(text)
    if found is None:
        _refuse(file, "holds no certificate in PEM form", hint="it has a line -----BEGIN CERTIFICATE-----")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        _refuse(file, f"holds a damaged certificate: {_reason(error)}")
    return found.group()


def _require_key(file: TlsFile, text: str, *, certificate: TlsFile) -> None:
    """Refuse a key that is none, is locked, or belongs to another certificate."""
    if not _KEY.search(text):
        _refuse(file, "holds no private key in PEM form", hint="it has a line -----BEGIN PRIVATE KEY-----")
    if "ENCRYPTED" in text:
        _refuse(file, "is encrypted, and nobody is there to type a password", hint="openssl pkey decrypts it")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate.path, file.path, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            _refuse(file, f"is not the key of {certificate.path}")
        _refuse(file, f"cannot be used with {certificate.path}: {_reason(error)}")


def _refuse(file: TlsFile, what: str, *, hint: str = "") -> NoReturn:
    raise UserError(
        "INVALID_SETTING", f"{file.path} {what}", subject=str(file.path), field=file.field, hint=hint
    )


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _end_of_validity(certificate: bytes) -> datetime:
    """``notAfter`` of a certificate in DER form (RFC 5280, 4.1); Python tells it of verified peers alone."""
    at, _ = _content(certificate, 0)
    at, _ = _content(certificate, at)
    if certificate[at] == _VERSION:
        _, at = _content(certificate, at)
    for _ in ("serial number", "signature algorithm", "issuer"):
        _, at = _content(certificate, at)
    at, _ = _content(certificate, at)
    _, at = _content(certificate, at)
    form = "%y%m%d%H%M%SZ" if certificate[at] == _SHORT_TIME else "%Y%m%d%H%M%SZ"
    begin, end = _content(certificate, at)
    return datetime.strptime(certificate[begin:end].decode("ascii"), form).replace(tzinfo=UTC)


def _content(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of the DER element at `at` begins and ends."""
    length, begin = data[at + 1], at + 2
    if length & 0x80:
        digit_count = length & 0x7F
        length, begin = int.from_bytes(data[begin : begin + digit_count]), begin + digit_count
    return begin, begin + length
