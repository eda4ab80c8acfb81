"""What a supervisor and its guardian say to each other; one message a frame.

Descriptors travel beside the bytes of the ``Spawn`` that they belong to: standard output, standard error,
then those that the process is given beyond these.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ostinato.worker.framing import frame
from ostinato.worker.process_limits import ProcessLimits

#: In the command of a ``Spawn``: replaced by the number of the first descriptor beyond the standard ones.
CHANNEL_ARGUMENT = b"@channel"
#: Program that carries a ``Report`` to the nodes.
REPORT_MODULE = "ostinato.tree_report"


class ReportTarget(msgspec.Struct, array_like=True):
    """Where the guardian reports that the supervisor is gone, as which worker, and what it brings along."""

    worker_id: str
    worker_name: str
    addresses: list[str]
    token: str = ""
    #: PEM file of the authority that nodes are checked by; empty: no TLS.
    tls_ca: str = ""
    tls_server_name: str = ""
    #: The supervisor's spool; empty: it has none.
    spool_path: str = ""


class Report(msgspec.Struct):
    """What the guardian has to say to the nodes; `heartbeat_sequence` as in the wire's ``TreeEnded``."""

    target: ReportTarget
    reason: str
    heartbeat_sequence: int | None
    #: Longest time that it is worth trying: by then the node waits no longer.
    limit_us: int


# ── supervisor → guardian ─────────────────────────────────────────────────────────────────────────────


class Configure(msgspec.Struct, tag=0, array_like=True):
    """First message: what makes boot time the same in both processes, and where to report (None: nowhere)."""

    clock_offset_us: int
    report: ReportTarget | None = None


class Spawn(msgspec.Struct, tag=1, array_like=True):
    """Start a process in a session of its own, unless its lease is over."""

    number: int
    command: list[bytes]
    environment: dict[bytes, bytes]
    marker: str
    directory: bytes | None
    descriptor_count: int
    lease_ends_us: int | None = None
    limits: ProcessLimits | None = None


class Mark(msgspec.Struct, tag=2, array_like=True):
    """End of the lease of what runs in a process; None: nothing there depends on one."""

    pid: int
    lease_ends_us: int | None


class Release(msgspec.Struct, tag=3, array_like=True):
    """The tree of an exited process has been dealt with; its pid may be given to somebody else."""

    pid: int


class Lease(msgspec.Struct, tag=4, array_like=True):
    """Newest heartbeat that any lease rests on, and when the last of all leases ends."""

    heartbeat_sequence: int
    worker_lease_us: int
    last_end_us: int = 0


class Ping(msgspec.Struct, tag=5, array_like=True):
    """Asks for a sign of life."""

    number: int


class Farewell(msgspec.Struct, tag=6, array_like=True):
    """The supervisor ends in good order: nothing to report."""


class Nodes(msgspec.Struct, tag=7, array_like=True):
    """Addresses of the nodes that there are now, the configured ones among them."""

    addresses: list[str]


class Container(msgspec.Struct, tag=8, array_like=True):
    """A container may run under this name, at the engine behind a UNIX socket, until its lease ends.

    Said before it is made, and whenever the lease moves; None: it depends on none.
    """

    name: str
    socket: str
    #: Of the engine's API.
    version: str
    lease_ends_us: int | None


class ContainerGone(msgspec.Struct, tag=9, array_like=True):
    """A container is removed, and will not come back."""

    name: str


# ── guardian → supervisor ─────────────────────────────────────────────────────────────────────────────


class Spawned(msgspec.Struct, tag=10, array_like=True):
    """Answer to ``Spawn``: the process, which cannot be mistaken for another by its start time."""

    number: int
    pid: int
    start_ticks: int


class NotSpawned(msgspec.Struct, tag=11, array_like=True):
    """Answer to ``Spawn``: as ``OSError`` has it, with number 0 for what is no error of the system."""

    number: int
    error_number: int
    message: str
    filename: str = ""
    is_lease_over: bool = False


class Exited(msgspec.Struct, tag=12, array_like=True):
    """A process has ended: exit status, or minus the signal. Its pid stays its own until ``Release``.

    `is_alone`: it has left nothing, or it would be the guardian's now.
    """

    pid: int
    return_code: int
    is_alone: bool = False


class Pong(msgspec.Struct, tag=13, array_like=True):
    """Answer to ``Ping``."""

    number: int


class LeaseEnded(msgspec.Struct, tag=14, array_like=True):
    """These processes were killed with all that came from them because their lease had ended."""

    pids: list[int]


class ContainersEnded(msgspec.Struct, tag=15, array_like=True):
    """These containers were killed and removed because their lease had ended."""

    names: list[str]


ToGuardian: TypeAlias = (
    Configure | Spawn | Mark | Release | Lease | Ping | Farewell | Nodes | Container | ContainerGone
)
FromGuardian: TypeAlias = Spawned | NotSpawned | Exited | Pong | LeaseEnded | ContainersEnded

_encoder = msgspec.msgpack.Encoder()
to_guardian = msgspec.msgpack.Decoder[ToGuardian](ToGuardian)
from_guardian = msgspec.msgpack.Decoder[FromGuardian](FromGuardian)


def encode_message(message: ToGuardian | FromGuardian) -> bytes:
    """One frame."""
    return frame(_encoder.encode(message))
