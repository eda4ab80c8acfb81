"""Program that carries a guardian's report to the nodes.

A process of its own, so that the guardian neither waits for the network nor carries what the network needs.
It reads the report from standard input, and ends with 0 once a node has recorded it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from pathlib import Path
from random import Random

import msgspec

from ostinato.clock import SystemClock
from ostinato.errors import OstinatoError
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.tls import TlsFile, WorkerTls
from ostinato.worker.guardian_messages import Report
from ostinato.worker.guardian_report import NotRecordedError, deliver


async def main() -> int:
    """Deliver what stands in standard input; returns the exit status."""
    report = msgspec.json.decode(sys.stdin.buffer.read(), type=Report)
    target = report.target
    tls = None
    if target.tls_ca:
        tls = WorkerTls(TlsFile(Path(target.tls_ca), "tls_ca"), server_name=target.tls_server_name)
    transport = GrpcWorkerTransport(tls=tls)
    try:
        await deliver(report, transport=transport, clock=SystemClock(), rng=Random())
    except (NotRecordedError, TimeoutError, OstinatoError, sqlite3.Error, OSError) as error:
        reason = str(error) or "no scheduler could be reached"
        os.write(2, f"ostinato guardian: not reported: {reason}\n".encode())
        return 1
    finally:
        await transport.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
