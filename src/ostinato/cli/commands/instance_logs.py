"""``ostinato instance logs``: what an instance wrote, and with ``--follow`` what it writes until its end."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.commands.instance import IdArgument, LastOption, LastTaskOption, app
from ostinato.cli.options import DatabaseOption, JsonOption, NamespaceOption, settings_of, wants_json
from ostinato.cli.output import JsonArray, flush_output, note, print_json, safe_lines, say, write
from ostinato.cli.selecting import One
from ostinato.errors import UserError

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.core.model import Instance, OutputChunk
    from ostinato.settings import Settings

_TAIL_MAX = 100_000
_POLL_FIRST_US = 50_000
_POLL_LAST_US = 500_000
#: Output is stored beside the end of its attempt, not with it: so long after the end more may come.
_SETTLED_US = 1_000_000
#: What has waited so long since it was first looked at is told to wait, and why.
_WAITS_US = 500_000


@app.command()
def logs(
    context: typer.Context,
    instance_id: IdArgument = None,
    *,
    last: LastOption = False,
    task: LastTaskOption = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="Only of this attempt.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what it writes, until it has ended.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", help="Of what it wrote so far, only the last lines.")
    ] = None,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what an instance wrote."""
    if attempt is not None and attempt < 1:
        raise UserError("INVALID_VALUE", f"{attempt} is no attempt; the first is 1", field="--attempt")
    if tail is not None and not 0 <= tail <= _TAIL_MAX:
        raise UserError("INVALID_VALUE", f"{tail} is not within 0 to {_TAIL_MAX}", field="--tail")
    one = One(instance_id=instance_id, last=last, task=task)
    settings = settings_of(context, database=database, namespace=namespace)
    wanted = _Wanted(one, attempt=attempt, tail=tail, follow=follow)
    _print(settings, wanted, in_json=wants_json(context, as_json=as_json))


class _Wanted:
    """Which output is shown."""

    def __init__(self, one: One, *, attempt: int | None, tail: int | None, follow: bool) -> None:
        self.one = one
        #: Empty until it has been found.
        self.instance_id = ""
        self.attempt = attempt
        self.tail = tail
        self.follow = follow

    def has(self, chunk: OutputChunk) -> bool:
        return self.attempt is None or chunk.attempt == self.attempt


def _print(settings: Settings, wanted: _Wanted, *, in_json: bool) -> None:
    from ostinato.cli.session import in_session

    sink = _JsonLines() if in_json and wanted.follow else _JsonArray() if in_json else _Text(wanted)

    async def use(session: Session) -> None:
        from ostinato.control.queries import get_instance

        wanted.instance_id = await wanted.one.find(session)
        instance = await get_instance(session.store, wanted.instance_id)
        if wanted.attempt is not None and wanted.attempt > instance.attempt and not wanted.follow:
            note(f"there is no attempt {wanted.attempt}; the newest is {instance.attempt}")
        async for chunk in _chunks(session, wanted, instance):
            sink.add(chunk)

    try:
        in_session(settings, use)
    except KeyboardInterrupt:
        # As it was given, if the interrupt came before it was found.
        identifier = wanted.instance_id or wanted.one.instance_id
        if wanted.follow and identifier:
            note(f"no longer following; instance {identifier} goes on")
        raise
    sink.end()


class _Text:
    """Output as it was written, with a heading for each attempt."""

    def __init__(self, wanted: _Wanted) -> None:
        self._has_headings = wanted.attempt is None
        self._attempt = 0
        self._is_within_line = False

    def add(self, chunk: OutputChunk) -> None:
        if chunk.attempt != self._attempt and self._has_headings:
            if self._is_within_line:
                say()
            say(f"--- attempt {chunk.attempt} ---")
        self._attempt = chunk.attempt
        # Pieces are as they came, so a line may go on in the next one.
        write(safe_lines(chunk.text))
        self._is_within_line = not chunk.text.endswith("\n")
        flush_output()

    def end(self) -> None:
        if not self._attempt:
            note("it has written nothing")


class _JsonLines:
    """Each piece as a line of JSON, at once."""

    def add(self, chunk: OutputChunk) -> None:
        print_json(_shape(chunk), on_one_line=True)
        flush_output()

    def end(self) -> None:
        """Nothing is left to write."""


class _JsonArray:
    """All pieces as one array, each written as it is read."""

    def __init__(self) -> None:
        self._array = JsonArray()

    def add(self, chunk: OutputChunk) -> None:
        self._array.add(_shape(chunk))

    def end(self) -> None:
        self._array.end()


def _shape(chunk: OutputChunk) -> object:
    import msgspec

    from ostinato.control.shapes.instance import output_shape

    return msgspec.to_builtins(output_shape(chunk))


async def _chunks(session: Session, wanted: _Wanted, instance: Instance) -> AsyncIterator[OutputChunk]:
    """The wanted output so far, and with ``follow`` what comes until the end; in bounded memory."""
    from ostinato.control.queries import read_output

    start = (0, -1) if wanted.attempt is None else (min(wanted.attempt, instance.attempt + 1), -1)
    at = start
    kept = _LastLines(wanted.tail or 0)
    async for chunk in read_output(session.store, wanted.instance_id, after=start):
        at = (chunk.attempt, chunk.sequence)
        if not wanted.has(chunk):
            continue
        if wanted.tail is None:
            yield chunk
        else:
            kept.add(chunk)
    for chunk in kept.pieces():
        yield chunk
    if wanted.follow:
        async for chunk in _later(session, wanted, after=at):
            yield chunk


class _LastLines:
    """The last lines of output, a line with all pieces in which it came."""

    def __init__(self, count: int) -> None:
        self._lines: deque[list[OutputChunk]] = deque(maxlen=count)
        self._newest: OutputChunk | None = None

    def add(self, chunk: OutputChunk) -> None:
        """Take the lines of `chunk`, the first of which may go on with the one before."""
        import msgspec

        # As written: other characters that end a line for Python, such as a form feed, are part of it.
        *whole, rest = chunk.text.split("\n")
        for text in [*(f"{line}\n" for line in whole), *([rest] if rest else [])]:
            piece = msgspec.structs.replace(chunk, text=text)
            before, self._newest = self._newest, piece
            goes_on = before is not None and before.attempt == piece.attempt and before.text[-1:] != "\n"
            if goes_on and self._lines:
                self._lines[-1].append(piece)
            else:
                self._lines.append([piece])

    def pieces(self) -> Iterator[OutputChunk]:
        """What is kept, in its order."""
        for line in self._lines:
            yield from line


async def _later(session: Session, wanted: _Wanted, *, after: tuple[int, int]) -> AsyncIterator[OutputChunk]:
    """Output after the pair until the instance, or the attempt that is wanted, has ended and all has come."""
    from ostinato.control.queries import get_instance, read_output

    clock = session.clock
    poll_us = _POLL_FIRST_US
    wait_told_us: int | None = clock.boot_us() + _WAITS_US
    quiet_since_us = clock.boot_us()
    while True:
        # Asked before the output is read, so that none comes between the two.
        instance = await get_instance(session.store, wanted.instance_id)
        is_over = _is_over(instance, wanted)
        if wait_told_us is not None and clock.boot_us() >= wait_told_us:
            wait_told_us = None
            await _tell_wait(session, instance)
        poll_us = min(poll_us * 2, _POLL_LAST_US)
        async for chunk in read_output(session.store, wanted.instance_id, after=after):
            after = (chunk.attempt, chunk.sequence)
            poll_us, quiet_since_us = _POLL_FIRST_US, clock.boot_us()
            if wanted.has(chunk):
                yield chunk
        now_us = clock.boot_us()
        if not is_over:
            quiet_since_us = now_us
        elif now_us - quiet_since_us >= _SETTLED_US:
            return
        await clock.sleep_until_us(now_us + poll_us)


async def _tell_wait(session: Session, instance: Instance) -> None:
    """Say of one that has not started yet that it waits, and why."""
    from ostinato.control.explain import story
    from ostinato.control.queries import scheduler_is_running
    from ostinato.core.states import TERMINAL_STATES, State

    if instance.state in TERMINAL_STATES or instance.state is State.RUNNING:
        return
    runs = await scheduler_is_running(session.store, clock=session.clock)
    told = await story(session.store, instance.id, scheduler_runs=runs)
    if told.state not in TERMINAL_STATES and told.state is not State.RUNNING:
        note(f"instance {instance.id} waits ({told.state}): {told.next}")


def _is_over(instance: Instance, wanted: _Wanted) -> bool:
    from ostinato.core.states import TERMINAL_STATES, State

    if instance.state in TERMINAL_STATES:
        return True
    if wanted.attempt is None:
        return False
    has_ended = instance.attempt == wanted.attempt and instance.state is not State.RUNNING
    return instance.attempt > wanted.attempt or (has_ended and wanted.attempt > 0)
