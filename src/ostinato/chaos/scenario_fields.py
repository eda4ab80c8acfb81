"""Every field of a scenario file: the one description that reader and JSON Schema share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.chaos.scenario import CommandEntry, Disk, Process, Proxy, Scenario, Step, Verb, Workload
from ostinato.chaos.scenario_kinds import (
    AddressKind,
    BoundedDuration,
    Named,
    ProbeMap,
    Rate,
    Size,
)
from ostinato.control.document.block import Block, Field
from ostinato.control.document.executor_blocks import CommandKind
from ostinato.control.document.kinds import (
    NAME_PATTERN,
    Instant,
    JsonObject,
    ListOf,
    Text,
    TextMap,
    Whole,
    Word,
)
from ostinato.control.document.read import VersionKind
from ostinato.control.document.reading import FAULTY, Reading, wrong_type
from ostinato.core.instants import DAY, HOUR, MILLISECOND, SECOND
from ostinato.errors import UserError
from ostinato.settings_readers import read_loopback, read_reachable

_PID_MAX = 2**22
_STEPS_COUNT_MAX = 1_000
_TIMES_MAX = 10_000
_RATE_MAX = 1_000
_AT = BoundedDuration(0, 7 * DAY)
_LENGTH = BoundedDuration(MILLISECOND, 7 * DAY)
#: Ways to say which process is meant.
PROCESS_WAYS = ("pid", "pidfile", "command_line", "start")

_PROCESS = Block(
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

_PROXY = Block(
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

_DISK = Block(
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

_COMMAND = Block(
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


def _step_block(verb: Verb, what: str, *fields: Field) -> Block:
    target = Field(name=verb, attribute="target", kind=Text(), description=what, required=True)
    at = Field(
        name="at",
        attribute="at_us",
        kind=_AT,
        description="When, from the beginning of the schedule.",
        required=True,
        examples=("10s",),
    )
    every = Field(
        name="every",
        attribute="every_us",
        kind=_LENGTH,
        description="From one time to the next.",
        examples=("30s",),
    )
    times = Field(
        name="times",
        attribute="times",
        kind=Whole(1, _TIMES_MAX),
        description="How often, with every.",
        default=1,
    )
    return Block(type=Step, thing=f"the step {verb}", fields=(target, at, *fields, every, times))


_FOR = Field(
    name="for", attribute="for_us", kind=_LENGTH, description="How long.", required=True, examples=("5s",)
)
_RUN_FOR = Field(
    name="for",
    attribute="for_us",
    kind=_LENGTH,
    description="How long until undo is run; unsaid: at the end.",
)
_BY = Field(
    name="by",
    attribute="by_us",
    kind=BoundedDuration(MILLISECOND, HOUR),
    description="How much later everything arrives, in each direction.",
    required=True,
    examples=("200ms",),
)
_HOW = Field(
    name="how",
    attribute="how",
    kind=Word(("reset", "silent")),
    description="reset: connections break, new ones are refused; silent: nothing passes, nobody is told.",
    default="reset",
)

#: By their first field, which names the target.
STEPS: dict[Verb, Block] = {
    "kill": _step_block("kill", "A process that is ended with SIGKILL."),
    "pause": _step_block("pause", "A process that is stopped with SIGSTOP, then goes on.", _FOR),
    "cut": _step_block("cut", "A proxy whose connections are cut.", _FOR, _HOW),
    "delay": _step_block("delay", "A proxy whose connections are slowed down.", _FOR, _BY),
    "fill": _step_block("fill", "A disk that is filled.", _FOR),
    "run": _step_block("run", "A command that is run.", _RUN_FOR),
}


class StepKind:
    """One step: the block that its verb names."""

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        hint = f"write {{kill: node-a, at: 10s}}; the verbs are {', '.join(STEPS)}"
        if not isinstance(value, Mapping):
            raise wrong_type(value, "a step", field=field, hint=hint)
        said: list[Verb] = [verb for verb in STEPS if value.get(verb) is not None]
        if len(said) != 1:
            message = f"says {' and '.join(said)}" if said else "says nothing to do"
            raise UserError("INVALID_VALUE", message, field=field, hint=hint)
        members = STEPS[said[0]].read_members(value, field, reading=reading)
        return FAULTY if FAULTY in members.values() else Step(verb=said[0], **members)

    def write(self, value: Any) -> dict[str, Any]:
        return STEPS[value.verb].write(value)

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [block.schema() for block in STEPS.values()]}


SCENARIO = Block(
    type=Scenario,
    thing="a scenario",
    fields=(
        Field(
            name="version",
            attribute="version",
            kind=VersionKind(),
            description="Version of this form of files.",
            required=True,
            examples=(1,),
        ),
        Field(
            name="processes",
            attribute="processes",
            kind=Named(_PROCESS),
            description="Processes that may be killed and paused.",
        ),
        Field(
            name="proxies",
            attribute="proxies",
            kind=Named(_PROXY),
            description="Connections that may be cut.",
        ),
        Field(name="disks", attribute="disks", kind=Named(_DISK), description="Disks that may be filled."),
        Field(
            name="commands",
            attribute="commands",
            kind=Named(_COMMAND),
            description="Commands that may be run.",
        ),
        Field(
            name="probes",
            attribute="probes",
            kind=ProbeMap(),
            description="What answers while all is well: HTTP addresses, or HOST:PORT.",
            examples=({"node-a": "http://127.0.0.1:8640/readyz"},),
        ),
        Field(
            name="steps",
            attribute="steps",
            kind=ListOf(StepKind(), _STEPS_COUNT_MAX, "[{kill: node-a, at: 10s}]"),
            description="What is done, and when.",
            required=True,
        ),
        Field(
            name="lasts",
            attribute="lasts_us",
            kind=BoundedDuration(0, 7 * DAY),
            description="How long the schedule goes on; unsaid: until the last fault is over.",
            examples=("2m",),
        ),
        Field(
            name="recover_within",
            attribute="recover_within_us",
            kind=BoundedDuration(SECOND, DAY),
            description="Longest time from the end of a fault until all probes answer.",
            default="1m",
        ),
        Field(
            name="workload",
            attribute="workload",
            kind=WORKLOAD,
            description="Instances of a task of yours that are submitted meanwhile.",
        ),
        Field(
            name="witness",
            attribute="witness",
            kind=Text(),
            description="Folder in which tasks write down what they do.",
        ),
    ),
)
