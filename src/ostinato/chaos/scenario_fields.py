"""Steps, and a scenario whole: with the fields of its entries what reader and JSON Schema share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.chaos.entry_fields import COMMAND, DISK, PROCESS, PROXY, WORKLOAD
from ostinato.chaos.scenario import Scenario, Step, Verb
from ostinato.chaos.scenario_kinds import BoundedDuration, Named, ProbeMap
from ostinato.control.document.block import Block, Field
from ostinato.control.document.errors import shown_key
from ostinato.control.document.kinds import ListOf, Text, Whole, Word
from ostinato.control.document.read import VersionKind
from ostinato.control.document.reading import FAULTY, Reading, wrong_type
from ostinato.control.names import did_you_mean
from ostinato.core.instants import DAY, HOUR, MILLISECOND, SECOND
from ostinato.errors import UserError

_STEPS_COUNT_MAX = 1_000
_TIMES_MAX = 10_000
#: From the beginning of a schedule to its end.
SCHEDULE_US_MAX = 7 * DAY
_AT = BoundedDuration(0, SCHEDULE_US_MAX)
_LENGTH = BoundedDuration(MILLISECOND, SCHEDULE_US_MAX)


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
            message = f"says {' and '.join(said)}" if said else _nothing_to_do(value)
            unknown = next((shown_key(name) for name in value if name not in _STEP_FIELDS), "")
            hint = hint if said or not unknown else did_you_mean(unknown, STEPS) or hint
            raise UserError("INVALID_VALUE", message, field=field, hint=hint)
        members = STEPS[said[0]].read_members(value, field, reading=reading)
        return FAULTY if FAULTY in members.values() else Step(verb=said[0], **members)

    def write(self, value: Any) -> dict[str, Any]:
        return STEPS[value.verb].write(value)

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [block.schema() for block in STEPS.values()]}


#: Of any step, the verbs included.
_STEP_FIELDS = {field.name for block in STEPS.values() for field in block.fields}


def _nothing_to_do(value: Mapping[Any, Any]) -> str:
    unknown = [shown_key(name) for name in value if name not in _STEP_FIELDS]
    return f"{unknown[0]!r} is not something that a step does" if unknown else "says nothing to do"


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
            kind=Named(PROCESS),
            description="Processes that may be killed and paused.",
        ),
        Field(
            name="proxies",
            attribute="proxies",
            kind=Named(PROXY),
            description="Connections that may be cut.",
        ),
        Field(name="disks", attribute="disks", kind=Named(DISK), description="Disks that may be filled."),
        Field(
            name="commands",
            attribute="commands",
            kind=Named(COMMAND),
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
            kind=BoundedDuration(0, SCHEDULE_US_MAX),
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
