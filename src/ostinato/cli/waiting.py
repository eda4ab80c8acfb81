"""Waiting for an instance to end, which Ctrl-C leaves without touching the instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ostinato.cli.output import note, print_json, safe, say
from ostinato.cli.session import Session, in_session
from ostinato.cli.views import instance_json, shown_instant
from ostinato.control.queries import get_instance
from ostinato.core.instants import MILLISECOND
from ostinato.core.model import HistoryKind
from ostinato.core.states import TERMINAL_STATES, State
from ostinato.errors import EXIT_FAILED

if TYPE_CHECKING:
    from ostinato.core.model import Instance
    from ostinato.settings import Settings

_POLL_FIRST_US = 20 * MILLISECOND
_POLL_LAST_US = 500 * MILLISECOND


def follow_to_end(settings: Settings, instance_id: str, *, in_json: bool) -> None:
    """Show how the instance ends and, on stderr, each failure before; no success fails the command."""
    if not in_json:
        say(instance_id)
    try:
        ended = in_session(settings, lambda session: _until_ended(session, instance_id))
    except KeyboardInterrupt:
        note(f"no longer waiting; instance {instance_id} goes on (ostinato instance show {instance_id})")
        raise
    if in_json:
        print_json(instance_json(ended, whole=True))
    else:
        _show_end(ended)
    if ended.state is not State.SUCCESS:
        raise typer.Exit(EXIT_FAILED)


async def _until_ended(session: Session, instance_id: str) -> Instance:
    if not await session.store.nodes():
        note("no scheduler is running: the instance starts when one does")
    poll_us = _POLL_FIRST_US
    told, told_reason = 0, ""
    while True:
        instance = await get_instance(session.store, instance_id)
        if instance.attempt > told:
            told = await _tell_failures(session, instance, after=told)
        if instance.hold is not None and instance.reason not in ("", told_reason):
            told_reason = instance.reason
            note(f"it waits: {told_reason}")
        if instance.state in TERMINAL_STATES:
            return instance
        await session.clock.sleep_until_us(session.clock.boot_us() + poll_us)
        poll_us = min(poll_us * 2, _POLL_LAST_US)


async def _tell_failures(session: Session, instance: Instance, *, after: int) -> int:
    """Say on stderr how attempts after `after` failed that are tried again; the newest of those attempts."""
    newest = after
    for row in await session.store.history(instance.id):
        if row.kind is not HistoryKind.RETRY or row.attempt <= after or row.generation != instance.generation:
            continue
        why = "" if row.failure is None else row.failure.message.partition("\n")[0]
        due = "" if row.due_us is None else f"; the next is due at {shown_instant(row.due_us)}"
        note(f"attempt {row.attempt} failed: {row.code}: {why}{due}")
        newest = row.attempt
    return newest


def _show_end(ended: Instance) -> None:
    if ended.state is State.SUCCESS:
        result = "null" if ended.result is None else ended.result.decode("utf-8", "replace")
        say(f"success: {safe(result)}")
        return
    say(f"{ended.state}: {safe(ended.reason)}".rstrip(": "))
    if ended.failure is not None:
        say(f"{ended.failure.code}: {safe(ended.failure.message)}")
    note(f"the whole story: ostinato instance show {ended.id}")
