"""The app of the tests that kill processes: tasks of every kind that leave traces for the witness.

Every task takes `round`, the folder of its traces, and `seconds`, or None to run until the gate is open.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil
from support.witness_trace import COMMAND, TICK_SECONDS, Trace, gate_of, trace_name

from ostinato import App, Context, Retry

#: The policy's backoff; losses wait otherwise.
BACKOFF_SECONDS = 1

app = App("witness")
_policy = Retry.fixed(BACKOFF_SECONDS)


def trace_of(context: Context, round: str) -> Trace:
    """The trace of a running attempt."""
    name = trace_name(context.instance_id, context.attempt, attempt_id=context.attempt_id)
    return Trace(f"{os.environ['WITNESS_FOLDER']}/{round}", name=name)


@app.task(retry=_policy, timeout="10m", grace="2s")
async def hold(context: Context, round: str, seconds: float | None) -> str:
    trace = trace_of(context, round)
    while trace.goes_on(seconds):
        await asyncio.sleep(TICK_SECONDS)
        trace.write("tick")
    trace.end()
    return context.attempt_id


def _block(context: Context, round: str, seconds: float | None) -> str:
    trace = trace_of(context, round)
    while trace.goes_on(seconds):
        time.sleep(TICK_SECONDS)
        trace.write("tick")
    trace.end()
    return context.attempt_id


@app.task(retry=_policy, timeout="10m", grace="2s")
def block(context: Context, round: str, seconds: float | None) -> str:
    return _block(context, round, seconds)


@app.task(retry=_policy, timeout="10m", grace="2s", exclusive="relaxed")
def block_relaxed(context: Context, round: str, seconds: float | None) -> str:
    """In a process of its own: in the loop process it would share the end of its strict neighbours."""
    return _block(context, round, seconds)


@app.task(retry=_policy, timeout="10m", grace="2s")
def kill_worker(context: Context, round: str, seconds: float | None) -> None:
    """Kill the supervisor of the worker that runs this, once the attempt has its gate open: a poison pill."""
    trace = trace_of(context, round)
    gate = f"{os.environ['WITNESS_FOLDER']}/{round}/{gate_of(context.attempt)}"
    while not os.path.exists(gate):
        time.sleep(TICK_SECONDS)
        trace.write("tick")
    supervisor = psutil.Process()
    while "ostinato.cli" not in supervisor.cmdline():
        parent = supervisor.parent()
        assert parent is not None, "a slot descends from its supervisor"
        supervisor = parent
    supervisor.send_signal(signal.SIGKILL)
    while trace.goes_on(None):
        time.sleep(TICK_SECONDS)
        trace.write("tick")


_ENVIRONMENT = {"WITNESS_FOLDER": os.environ.get("WITNESS_FOLDER", "")}
app.shell("command", COMMAND, env=_ENVIRONMENT, retry=_policy, timeout="10m", grace="2s")
app.shell("escaping", (*COMMAND, "--escape"), env=_ENVIRONMENT, retry=_policy, timeout="10m", grace="2s")
