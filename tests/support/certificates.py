"""Real certificates for tests, made with the ``openssl`` command as docs/operations.md says."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

#: Names under which a test reaches a scheduler of its own machine.
LOOPBACK_NAMES = "DNS:localhost,IP:127.0.0.1"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificate(NamedTuple):
    """Paths of a certificate and its private key."""

    certificate: Path
    key: Path


def openssl(*arguments: str | Path) -> None:
    """Run a command of openssl."""
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def self_signed(folder: Path, name: str = "scheduler", *, names: str = LOOPBACK_NAMES) -> Certificate:
    """A certificate that is its own authority."""
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    openssl(
        *("req", "-x509", *_NEW_KEY, "-days", "30", "-subj", f"/CN={name}"),
        *("-addext", f"subjectAltName={names}", "-keyout", made.key, "-out", made.certificate),
    )
    return made


def signed(folder: Path, authority: Certificate, name: str = "signed", *, days: int = 30) -> Certificate:
    """A certificate of `authority`'s; with negative `days` it has expired."""
    made, request = Certificate(folder / f"{name}.pem", folder / f"{name}.key"), folder / f"{name}.csr"
    openssl(
        *("req", *_NEW_KEY, "-subj", f"/CN={name}", "-addext", f"subjectAltName={LOOPBACK_NAMES}"),
        *("-keyout", made.key, "-out", request),
    )
    openssl(
        *("x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key),
        *("-CAcreateserial", "-copy_extensions", "copy", "-days", str(days), "-out", made.certificate),
    )
    return made
