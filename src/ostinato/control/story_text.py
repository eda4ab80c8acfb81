"""The story of an instance as lines of text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ostinato.control.explain import AttemptStory, EventStory, Story
from ostinato.core.instants import MILLISECOND, SECOND, format_duration, format_instant
from ostinato.core.states import TERMINAL_STATES, State

_INDENT = "    "
_MESSAGE_LINES_MAX = 20
#: A frame of a Python traceback, and a file that was installed rather than written for the task.
_FRAME = re.compile(r'^ *(?:\| *)?File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<")
_JSON_LENGTH_MAX = 500


def story_lines(story: Story, *, traceback: bool = False, now_us: int | None = None) -> list[str]:
    """Lines for a terminal or a log; `traceback` adds those of the attempts. Never empty.

    With `now_us`, the store's time, what runs says for how long.
    """
    lines = [*_head(story), ""]
    lines += _happenings(story, traceback=traceback, now_us=now_us)
    if any(attempt.error_output for attempt in story.attempts):
        lines += [f"logs: ostinato instance logs {story.id}"]
    if not traceback and any(attempt.traceback for attempt in story.attempts):
        lines += [f"traceback: ostinato instance show {story.id} --traceback"]
    lines += [f"next: {story.next}"]
    if story.state in TERMINAL_STATES and story.state is not State.SUCCESS:
        lines += [f"again: ostinato instance retry {story.id}{_other_payload(story)}"]
    return lines


def _other_payload(story: Story) -> str:
    """What is needed besides where the same payload would fail again."""
    if not story.attempts or story.attempts[-1].code != "BAD_PAYLOAD":
        return ""
    return " --payload JSON  (the same one would fail again; with task trigger: --arg NAME:=JSON)"


def _head(story: Story) -> Iterator[str]:
    yield f"instance {story.id}"
    yield f"task     {story.namespace}/{story.task} (version {story.task_version})"
    reason = story.reason.removeprefix(f"{story.state}: ")
    yield f"state    {story.state}: {reason}" if reason else f"state    {story.state}"
    if story.fire_us is not None:
        shard = f", shard {story.shard} of {story.shard_total}" if story.shard_total > 1 else ""
        yield f"fired    for {format_instant(story.fire_us)}{shard}"
    yield f"created  {format_instant(story.created_us)}, priority {story.priority}"
    if story.key:
        yield f"key      {story.key}"
    if story.state not in TERMINAL_STATES and story.state is not State.RUNNING:
        yield f"due      {format_instant(story.due_us)}"
    if story.finished_us is not None:
        # Clocks of two machines differ a little: an instance does not end before its last attempt.
        ended_us = max([story.finished_us, *(attempt.ended_us or 0 for attempt in story.attempts[-1:])])
        took_us = ended_us - story.created_us
        yield f"ended    {format_instant(ended_us)}, {_rounded(took_us)} after its creation"
    yield f"payload  {_one_line(story.payload)}"
    if story.result is not None:
        yield f"result   {_one_line(story.result)}"
    if story.generation > 1:
        yield f"replays  {story.generation - 1}"
    if story.failures or story.lost:
        yield f"counts   {_count(story.failures, story.max_retry)} failures, " + (
            f"{_count(story.lost, story.max_lost)} lost attempts in this generation"
        )
    if story.cancel_requested_us is not None:
        why = f": {story.cancel_reason}" if story.cancel_reason else ""
        yield f"cancel   asked for at {format_instant(story.cancel_requested_us)}{why}"
    if story.waits and story.waits != story.reason:
        yield f"waits    {story.waits}"


def _one_line(encoded: str) -> str:
    """JSON on one line, cut where it is long; other control characters are the caller's affair."""
    text = re.sub(r"\s*[\r\n]\s*", " ", encoded)  # no string of JSON holds a bare end of line
    if len(text) <= _JSON_LENGTH_MAX:
        return text
    return f"{text[:_JSON_LENGTH_MAX]}… ({len(text)} characters; --json shows all)"


def _count(count: int, allowed: int | None) -> str:
    return str(count) if allowed is None else f"{count} of {allowed + 1} allowed"


def _happenings(story: Story, *, traceback: bool, now_us: int | None) -> Iterator[str]:
    """Attempts and events in the order in which they happened."""
    told: list[tuple[int, int, AttemptStory | EventStory]] = []
    told += ((_moment(attempt), attempt.number, attempt) for attempt in story.attempts)
    told += ((event.at_us, event.attempt, event) for event in story.events)
    if story.left_out:
        yield f"… {story.left_out} earlier entries are left out: ostinato instance show {story.id} --all"
    for _, _, entry in sorted(told, key=lambda entry: entry[:2]):
        if isinstance(entry, AttemptStory):
            yield from _attempt(entry, traceback=traceback, now_us=now_us)
        else:
            yield from _event(entry)
    if told:
        yield ""


def _moment(attempt: AttemptStory) -> int:
    known = (attempt.ended_us, attempt.started_us, attempt.assigned_us)
    return next((moment for moment in known if moment is not None), 0)


def _attempt(attempt: AttemptStory, *, traceback: bool, now_us: int | None) -> Iterator[str]:
    where = f" on {attempt.worker}" if attempt.worker else ""
    yield f"attempt {attempt.number}{where}: {attempt.ended}{_run_time(attempt, now_us)}"
    if attempt.started_us is not None:
        yield f"{_INDENT}started {format_instant(attempt.started_us)}"
    if attempt.ended_us is not None:
        yield f"{_INDENT}ended   {format_instant(attempt.ended_us)}"
    if attempt.code:
        yield f"{_INDENT}failure {attempt.code} ({attempt.category})"
        yield from _indented(attempt.message)
    for cause in attempt.chain[1:]:
        yield f"{_INDENT}caused by {cause.class_name}: {cause.message.partition(chr(10))[0]}"
    if place := users_place(attempt.traceback):
        yield f"{_INDENT}at {place}"
    if traceback and attempt.traceback:
        yield from (_INDENT * 2 + line for line in attempt.traceback.rstrip().split("\n"))
    for line in attempt.error_output:
        yield f"{_INDENT}stderr  {line}"
    if attempt.decision:
        yield f"{_INDENT}decided {attempt.decision}"


def users_place(traceback: str) -> str:
    """``file:line, in function`` of the last frame that is no library's; empty where there is none."""
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
    return "{}:{}, in {}".format(*own[-1]) if own else ""


def _run_time(attempt: AttemptStory, now_us: int | None) -> str:
    # A worker tells the start only with the end: until then the assignment is what is known.
    since_us = attempt.started_us if attempt.started_us is not None else attempt.assigned_us
    if attempt.ended == "running" and since_us is not None and now_us is not None:
        return f" for {_rounded(now_us - since_us)} since {format_instant(since_us)}"
    if attempt.started_us is None or attempt.ended_us is None:
        return ""
    return f" after {_rounded(attempt.ended_us - attempt.started_us)}"


def _indented(message: str) -> Iterator[str]:
    lines = message.rstrip().split("\n") if message.strip() else []
    for line in lines[:_MESSAGE_LINES_MAX]:
        yield _INDENT * 2 + line
    if len(lines) > _MESSAGE_LINES_MAX:
        yield f"{_INDENT * 2}… {len(lines) - _MESSAGE_LINES_MAX} more lines"


def _event(event: EventStory) -> Iterator[str]:
    by = f" (by {event.by})" if event.by and event.by not in event.sentence else ""
    yield f"{format_instant(event.at_us)} {event.kind}: {event.sentence}{by}"


def _rounded(duration_us: int) -> str:
    if duration_us < MILLISECOND:  # below zero: the clocks of two machines differ
        return "<1ms"
    unit = MILLISECOND if duration_us < 10 * SECOND else SECOND
    return format_duration(duration_us // unit * unit)
