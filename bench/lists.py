"""Milliseconds that lists and counts take on a large SQLite database (case C189).

Run: ``python bench/lists.py [INSTANCES] [FILE]``, a million instances unless said; a file that exists is used
as it is. Each question is asked of a store opened anew: first with empty caches of its own, then again.
Then the same is asked of a running API, twenty times each (``lists_api.py``): median and maximum. On a
machine that has other work, only the CPU time says what a question costs. Exits 1 if an answer took too long.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from lists_api import ask_all

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec, TaskDefinition, TaskRef
from ostinato.core.ids import new_id, partition_of
from ostinato.core.instants import format_instant
from ostinato.core.states import State
from ostinato.store.batches import InstanceFilter
from ostinato.store.sqlite.store import SqliteStore

INSTANCE_COUNT = 1_000_000
TASK_COUNT = 50_000
NAMESPACE_COUNT = 40
ATTEMPT_COUNT = 10_000
ALLOWED_MS = 300
START_US = 1_767_225_600_000_000
STEP_US = 250_000
COUNT_LIMIT = 20_000
RARE_CODE = "RARE"

Question = Callable[[SqliteStore], Awaitable[str]]


def _task(number: int) -> tuple[str, str]:
    return f"team{number % NAMESPACE_COUNT:02}", f"job.{number:05}"


def _instances(count: int) -> Iterator[tuple[object, ...]]:
    """A tenth in one busy task; of a thousand one is pending, running, retrying or cancelled, ten failed."""
    rng = random.Random(1)
    for number in range(count):
        at_us = START_US + number * STEP_US
        namespace, task = _task(7 if rng.random() < 0.1 else int(rng.random() ** 2 * TASK_COUNT))
        draw = rng.random()
        state, failure = "success", None
        if draw < 0.014:
            state = ("failed" if draw < 0.010 else "pending", "running", "retry_waiting", "cancelled")[
                max(0, int(draw * 1000) - 10)
            ]
        if state in ("failed", "retry_waiting", "cancelled") or draw > 0.95:
            code = RARE_CODE if number in (5, count // 2) else rng.choice(["ECONNREFUSED", "HTTP_503"])
            failure = f'{{"code":"{code}","category":"transient","message":"{"m" * 200}"}}'
        elif number in (5, count // 2):
            failure = f'{{"code":"{RARE_CODE}","category":"transient","message":"once"}}'
        ended = state in ("success", "failed", "cancelled")
        yield (
            new_id(at_us, rng),
            namespace,
            task,
            partition_of(namespace, task, partition_count=64),
            state,
            at_us,
            at_us,
            0 if state == "pending" else 1,
            "" if state == "pending" else f"{rng.getrandbits(64):016x}",
            None if state == "pending" else at_us,
            at_us + STEP_US if ended else None,
            f"k{number}" if number % 50 == 0 else "",
            b'{"customer":4711,"text":"' + b"x" * 300 + b'"}',
            failure,
        )


def _fill(path: str, count: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -400000")
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO instance (id, namespace, task, partition, state, due_us, created_us, attempt,"
        " attempt_id, assigned_us, finished_us, key, payload, failure, task_version, priority)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 5)",
        _instances(count),
    )
    (story,) = connection.execute("SELECT max(id) FROM instance").fetchone()
    connection.executemany(
        "INSERT INTO history (instance_id, partition, at_us, kind, sentence, generation, attempt, attempt_id,"
        " worker_name, code, category, by, unconditional, failure)"
        " VALUES (?, 0, ?, 'retry', 'failed, again in 1 s', 1, ?, 'a', 'w', 'E', 'transient', '', 0, ?)",
        [
            (story, START_US + n, n, f'{{"code":"E","category":"transient","message":"{"m" * 500}"}}')
            for n in range(1, ATTEMPT_COUNT + 1)
        ],
    )
    connection.executemany(
        "INSERT INTO output (instance_id, attempt, sequence, attempt_id, at_us, stream, text)"
        " VALUES (?, ?, ?, 'a', ?, 'stdout', ?)",
        [
            (story, attempt, n, START_US, "line\n" * 20)
            for attempt in range(1, ATTEMPT_COUNT + 1)
            for n in range(3)
        ],
    )
    connection.execute("COMMIT")
    connection.close()


async def _make(path: str, count: int) -> None:
    store = SqliteStore(path, clock=SystemClock())
    await store.open()
    definitions = [TaskDefinition(*_task(number), ShellSpec(command="true")) for number in range(TASK_COUNT)]
    for start in range(0, TASK_COUNT, 5_000):
        await store.apply(definitions[start : start + 5_000], now_us=START_US)
    await store.close()
    _fill(path, count)


def _page(where: InstanceFilter, *, cursor: str | None = None) -> Question:
    async def ask(store: SqliteStore) -> str:
        page = await store.list_instances(where, cursor=cursor, limit=50)
        return f"{len(page.instances)} rows{'' if page.cursor is None else ', more'}"

    return ask


def _count(where: InstanceFilter) -> Question:
    async def ask(store: SqliteStore) -> str:
        counts = await store.count_instances(where, limit=COUNT_LIMIT)
        return f"{sum(counts.by_state.values())}{'' if counts.exact else '+'}"

    return ask


def _tasks(namespace: str | None, search: str = "", after: TaskRef | None = None) -> Question:
    async def ask(store: SqliteStore) -> str:
        return f"{len(await store.list_tasks(namespace, after=after, limit=50, search=search))} tasks"

    return ask


async def _namespaces(store: SqliteStore) -> str:
    return f"{len(await store.namespaces(limit=1_000))} namespaces"


def _history(identifier: str, after: int) -> Question:
    async def ask(store: SqliteStore) -> str:
        return f"{len(await store.history(identifier, after=after, limit=500))} rows"

    return ask


def _output(identifier: str, after: tuple[int, int]) -> Question:
    async def ask(store: SqliteStore) -> str:
        return f"{len(await store.output(identifier, after=after, limit=500))} chunks"

    return ask


async def _last_cursor(store: SqliteStore) -> str | None:
    """Cursor of the last full page: that behind an instance created among the first fifty or so."""
    where = InstanceFilter(created_before_us=START_US + 60 * STEP_US)
    return (await store.list_instances(where, cursor=None, limit=20)).cursor


def _filters(count: int) -> dict[str, InstanceFilter]:
    middle_us = START_US + count // 2 * STEP_US
    busy, quiet = _task(7), _task(49_999)
    return {
        "all": InstanceFilter(),
        "namespace": InstanceFilter(namespace="team07"),
        "namespace without any": InstanceFilter(namespace="nobody"),
        "busy task": InstanceFilter(*busy),
        "quiet task": InstanceFilter(*quiet),
        "task, any namespace": InstanceFilter(task=quiet[1]),
        **{f"state {state}": InstanceFilter(states=(state,)) for state in State},
        "states but success": InstanceFilter(states=tuple(s for s in State if s is not State.SUCCESS)),
        "busy task, failed": InstanceFilter(*busy, states=(State.FAILED,)),
        "busy task, pending": InstanceFilter(*busy, states=(State.PENDING,)),
        "busy task, blocked": InstanceFilter(*busy, states=(State.BLOCKED,)),
        "namespace, failed": InstanceFilter("team07", states=(State.FAILED,)),
        "namespace, success": InstanceFilter("team07", states=(State.SUCCESS,)),
        "key": InstanceFilter(key="k100"),
        "code": InstanceFilter(code="HTTP_503"),
        "rare code": InstanceFilter(code=RARE_CODE),
        "busy task, rare code": InstanceFilter(*busy, code=RARE_CODE),
        "failed, code": InstanceFilter(states=(State.FAILED,), code="HTTP_503"),
        "created before": InstanceFilter(created_before_us=middle_us),
        "created within": InstanceFilter(created_from_us=middle_us, created_before_us=middle_us + 1_000_000),
        "created before, task, failed": InstanceFilter(
            *busy, states=(State.FAILED,), created_before_us=middle_us
        ),
    }


async def _questions(path: str, count: int) -> dict[str, Question]:
    store = SqliteStore(path, clock=SystemClock())
    await store.open()
    last = await _last_cursor(store)
    newest = (await store.list_instances(InstanceFilter(), cursor=None, limit=1)).instances[0].id
    await store.close()
    questions: dict[str, Question] = {"page: last": _page(InstanceFilter(), cursor=last)}
    for name, where in _filters(count).items():
        questions[f"page: {name}"] = _page(where)
        questions[f"count: {name}"] = _count(where)
    return questions | {
        "tasks: first page": _tasks(None),
        "tasks: last page": _tasks(None, after=TaskRef("team39", "job.49900")),
        "tasks: search": _tasks(None, "JOB.499"),
        "tasks: search nothing": _tasks(None, "nothing"),
        "tasks: search in namespace": _tasks("team07", "job.400"),
        "namespaces": _namespaces,
        "history: first": _history(newest, 0),
        "history: last": _history(newest, ATTEMPT_COUNT - 500),
        "output: first": _output(newest, (0, -1)),
        "output: last": _output(newest, (ATTEMPT_COUNT - 100, -1)),
    }


async def _timed(store: SqliteStore, question: Question) -> tuple[float, float, str]:
    """Milliseconds, those of them in which the process computed, and the answer."""
    began, began_cpu = time.perf_counter(), time.process_time()
    answer = await question(store)
    return (time.perf_counter() - began) * 1000, (time.process_time() - began_cpu) * 1000, answer


def _make_file(path: str, count: int) -> None:
    began = time.perf_counter()
    asyncio.run(_make(path, count))
    size = Path(path).stat().st_size / 1e9
    print(f"{count} instances made in {time.perf_counter() - began:.0f} s, {size:.1f} GB")


async def _main(path: str, count: int) -> int:
    slow = 0
    print(f"{'question':<42}{'first ms':>10}{'again ms':>10}{'CPU ms':>10}  answer")
    for name, question in (await _questions(path, count)).items():
        store = SqliteStore(path, clock=SystemClock())
        await store.open()
        first, cpu, answer = await _timed(store, question)
        again, _, _ = await _timed(store, question)
        await store.close()
        mark = "" if max(first, again) < ALLOWED_MS else "  TOO SLOW"
        slow += bool(mark)
        print(f"{name:<42}{first:>10.1f}{again:>10.1f}{cpu:>10.1f}  {answer}{mark}")
    first = format_instant(START_US + 60 * STEP_US)
    slow += await ask_all(
        path, _filters(count), attempt_count=ATTEMPT_COUNT, first=first, allowed_ms=ALLOWED_MS
    )
    print(f"{slow} took {ALLOWED_MS} ms or more")
    return 1 if slow else 0


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else INSTANCE_COUNT
    with tempfile.TemporaryDirectory() as folder:
        file = sys.argv[2] if len(sys.argv) > 2 else f"{folder}/lists.db"
        if not Path(file).exists():
            _make_file(file, wanted)
        sys.exit(asyncio.run(_main(file, wanted)))
