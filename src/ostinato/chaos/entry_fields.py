"""What a scenario may touch, and what it submits: the fields of each entry."""

from __future__ import annotations

from ostinato.chaos.scenario import CommandEntry, Disk, Process, Proxy, Workload
from ostinato.chaos.scenario_kinds import AddressKind, BoundedDuration, Rate, Size
from ostinato.control.document.block import Block, Field
from ostinato.control.document.command_kind import CommandKind
from ostinato.control.document.kinds import NAME_PATTERN, Instant, JsonObject, Text, TextMap, Whole
from ostinato.core.instants import DAY, HOUR, MILLISECOND, SECOND
from ostinato.settings_readers import read_loopback, read_reachable

_PID_MAX = 2**22
_RATE_MAX = 1_000
#: Ways to say which process is meant.
PROCESS_WAYS = ("pid", "pidfile", "command_line", "start")

PROCESS = Block(
    type=Process,
    thing="a process",
    fields=(
        Field(
            name="pid", attribute="pid", kind=Whole(1, _PID_MAX), description="Its number.", examples=(4711,)
        ),
        Field(
            name="started",
            attribute="started_us",
            kind=Instant(),
            description="When the process of that pid was started, to the second.",
        ),
        Field(
            name="pidfile",
            attribute="pidfile",
            kind=Text(),
            description="File that holds its pid; read anew for each fault.",
            examples=("run/node-a.pid",),
        ),
        Field(
            name="command_line",
            attribute="command_line",
            kind=Text(),
            description="Its whole command line, as ps shows it; exactly one process must have it.",
        ),
        Field(
            name="command",
            attribute="command",
            kind=Text(),
            description="A part of its command line, which the process of a pid or pidfile must have.",
            examples=("ostinato scheduler",),
        ),
        Field(
            name="start",
            attribute="start",
            kind=CommandKind(),
            description="Command of a process that chaos starts, also after a kill, and ends; not a shell's.",
        ),
        Field(
            name="environment",
            attribute="environment",
            kind=TextMap("a variable"),
            description="Variables of a process that chaos starts, over its own.",
        ),
        Field(
            name="log",
            attribute="log",
            kind=Text(),
            description="File for what such a process writes; unsaid: NAME.log.",
        ),
        Field(
            name="again",
            attribute="again",
            kind=CommandKind(),
            description="Run after a kill, to start the process again; unsaid: something else does.",
            examples=("systemctl --user start node-a",),
        ),
        Field(
            name="again_after",
            attribute="again_after_us",
            kind=BoundedDuration(0, DAY),
            description="From the kill to the start.",
            default="1s",
        ),
    ),
)

PROXY = Block(
    type=Proxy,
    thing="a proxy",
    fields=(
        Field(
            name="listen",
            attribute="listen",
            kind=AddressKind(read_loopback),
            description="Where it listens, on this machine alone; point the members at it.",
            required=True,
            examples=("127.0.0.1:15432",),
        ),
        Field(
            name="target",
            attribute="target",
            kind=AddressKind(read_reachable),
            description="What it forwards to.",
            required=True,
            examples=("127.0.0.1:5432",),
        ),
    ),
)

DISK = Block(
    type=Disk,
    thing="a disk",
    fields=(
        Field(
            name="folder",
            attribute="folder",
            kind=Text(),
            description="A folder on the disk that is filled.",
            required=True,
            examples=("/srv/ostinato",),
        ),
        Field(
            name="leave_free",
            attribute="leave_free_bytes",
            kind=Size(),
            description="How much of the disk stays free.",
            required=True,
            examples=("1MiB",),
        ),
    ),
)

COMMAND = Block(
    type=CommandEntry,
    thing="a command",
    fields=(
        Field(
            name="run",
            attribute="run",
            kind=CommandKind(),
            description="What is run, in the folder of the scenario.",
            required=True,
            examples=("pg_ctlcluster 15 main restart",),
        ),
        Field(
            name="undo",
            attribute="undo",
            kind=CommandKind(),
            description="Run at the end of the fault, and on every way out.",
        ),
        Field(
            name="timeout",
            attribute="limit_us",
            kind=BoundedDuration(MILLISECOND, HOUR),
            description="Longest run of either.",
            default="1m",
        ),
    ),
)

WORKLOAD = Block(
    type=Workload,
    thing="a workload",
    fields=(
        Field(
            name="url",
            attribute="url",
            kind=Text(),
            description="Where it submits: the API's address, or the database's URL.",
            required=True,
            examples=("http://127.0.0.1:8640",),
        ),
        Field(
            name="task",
            attribute="task",
            kind=Text(NAME_PATTERN),
            description="A task that is safe to run often and more than once.",
            required=True,
            examples=("probe",),
        ),
        Field(
            name="namespace",
            attribute="namespace",
            kind=Text(NAME_PATTERN),
            description="Its namespace.",
            default="default",
        ),
        Field(
            name="rate",
            attribute="rate",
            kind=Rate(_RATE_MAX),
            description="Submissions a second.",
            required=True,
            examples=(5,),
        ),
        Field(
            name="payload", attribute="payload", kind=JsonObject(), description="What each is submitted with."
        ),
        Field(
            name="runs_for",
            attribute="runs_for_us",
            kind=BoundedDuration(0, DAY),
            description="Longest undisturbed run of one attempt.",
            default="10s",
        ),
        Field(
            name="worker_lease",
            attribute="worker_lease_us",
            kind=BoundedDuration(SECOND, DAY),
            description="The cluster's worker lease.",
            default="1m",
        ),
        Field(
            name="settle",
            attribute="settle_us",
            kind=BoundedDuration(SECOND, DAY),
            description="Longest wait after the schedule until all have ended.",
            default="5m",
        ),
    ),
)
