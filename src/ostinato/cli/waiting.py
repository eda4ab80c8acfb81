"""Waiting for an instance to end, which Ctrl-C leaves without touching the instance."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from ostinato.cli.output import note, print_json, safe, say
from ostinato.cli.session import Session, in_session
from ostinato.cli.status_line import StatusLine, status_of
from ostinato.cli.views import shown_instant
from ostinato.control.queries import get_instance, read_output
from ostinato.core.instants import MILLISECOND
from ostinato.core.model import HistoryKind
from ostinato.core.states import TERMINAL_STATES, State
from ostinato.core.url_text import shown_url
from ostinato.errors import EXIT_FAILED

if TYPE_CHECKING:
    from ostinato.core.model import Instance
    from ostinato.settings import Settings

_POLL_FIRST_US = 20 * MILLISECOND
_POLL_LAST_US = 500 * MILLISECOND


def follow_to_end(settings: Settings, instance_id: str, *, in_json: bool) -> None:
    """Show how the instance ends and, on stderr, each failure before; no success fails the command."""
    line = StatusLine(sys.stderr)
    try:
        if not in_json:
            say(instance_id)
        ended, told = in_session(settings, lambda session: _Wait(session, instance_id, line=line).to_end())
    except KeyboardInterrupt:
        line.clear()
        note(f"no longer waiting; instance {instance_id} goes on")
        for words, verb in (("follow it", "logs --follow"), ("see its story", "show"), ("end it", "cancel")):
            note(f"  {words}: ostinato instance {verb} {instance_id}{_database_option(settings)}")
        raise
    finally:
        line.clear()
    if in_json:
        print_json(told)
    else:
        _show_end(ended)
    if ended.state is not State.SUCCESS:
        raise typer.Exit(EXIT_FAILED)


def _database_option(settings: Settings) -> str:
    """What another command needs to find the same database, if it was named in this one."""
    given = settings.sources.get("database", "").startswith("--")
    return f" --database {shown_url(settings.database)}" if given else ""


class _Wait:
    """One wait: what has been told so far, and what is looked at next."""

    def __init__(self, session: Session, instance_id: str, *, line: StatusLine) -> None:
        self._session = session
        self._instance_id = instance_id
        self._line = line
        self._told_attempt = 0
        self._told_rows = 0
        self._told_reason = ""
        self._output_after = (0, -1)
        self._newest_words = ""

    async def to_end(self) -> tuple[Instance, object]:
        """The instance once it has ended, and what JSON says of it."""
        session, line = self._session, self._line
        if not await session.store.nodes():
            line.note("no scheduler is running: the instance starts when one does")
        poll_us = _POLL_FIRST_US
        while True:
            instance = await get_instance(session.store, self._instance_id)
            await self._tell(instance)
            if instance.state in TERMINAL_STATES:
                line.clear()
                return instance, await self._in_json(instance)
            if line.is_drawn:
                await self._read_output()
                now_us = await session.store.now_us()
                line.draw(status_of(instance, now_us=now_us, words=self._newest_words))
            await session.clock.sleep_until_us(session.clock.boot_us() + poll_us)
            poll_us = min(poll_us * 2, _POLL_LAST_US)

    async def _tell(self, instance: Instance) -> None:
        """Say once why it waits and, of each failed attempt that is tried again, how it failed."""
        if instance.attempt > self._told_attempt:
            self._told_attempt = await self._tell_failures(instance)
        # On a terminal the line says it, and goes on saying it.
        if self._line.is_drawn or instance.hold is None or instance.reason in ("", self._told_reason):
            return
        self._told_reason = instance.reason
        self._line.note(f"it waits: {self._told_reason}")

    async def _tell_failures(self, instance: Instance) -> int:
        newest = self._told_attempt
        for row in await self._session.store.history(instance.id, after=self._told_rows):
            self._told_rows += 1
            is_new = row.attempt > self._told_attempt and row.generation == instance.generation
            if row.kind is not HistoryKind.RETRY or not is_new:
                continue
            why = "" if row.failure is None else row.failure.message.partition("\n")[0]
            due = "" if row.due_us is None else f"; the next is due at {shown_instant(row.due_us)}"
            self._line.note(f"attempt {row.attempt} failed: {row.code}: {why}{due}")
            newest = row.attempt
        return newest

    async def _read_output(self) -> None:
        """Keep the newest line with something on it of what the instance wrote since."""
        async for chunk in read_output(self._session.store, self._instance_id, after=self._output_after):
            self._output_after = (chunk.attempt, chunk.sequence)
            written = [line for line in chunk.text.split("\n") if line.strip()]
            self._newest_words = written[-1] if written else self._newest_words

    async def _in_json(self, instance: Instance) -> object:
        """The shape of a whole instance, as ``instance show --json`` has it."""
        import msgspec

        from ostinato.control.explain import whole_story
        from ostinato.control.shapes.instance import story_shape

        told = await whole_story(self._session.store, instance.id)
        return msgspec.to_builtins(story_shape(instance, told.story, history=told.history))


def _show_end(ended: Instance) -> None:
    if ended.state is State.SUCCESS:
        result = "null" if ended.result is None else ended.result.decode("utf-8", "replace")
        say(f"success: {safe(result)}")
        return
    say(f"{ended.state}: {safe(ended.reason)}".rstrip(": "))
    if ended.failure is not None:
        say(f"{ended.failure.code}: {safe(ended.failure.message)}")
    note(f"the whole story: ostinato instance show {ended.id}")
