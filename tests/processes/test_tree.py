"""A worker as a real process: what runs into its time-out is ended whole, and leaves its slot as it was."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.services import Services

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
#: Time-out of a blocking function.
STUCK_S = 5 if FULL else 1

#: Of this run alone, however many run on the machine.
_RUN = f"1{os.getpid():07d}"

#: Every process of a tree shows the tag of its task in its command line.
TREES = {
    "background": f"sh -c 'sleep {_RUN}1 & sleep {_RUN}1'",
    "session": f"setsid sleep {_RUN}2 & sleep {_RUN}2",
    "double-fork": f"(setsid sh -c 'sleep {_RUN}3 & sleep {_RUN}3' &); sleep {_RUN}3",
    "ignores-term": f"trap '' TERM; : {_RUN}4; while :; do sleep 1; done",
    "empty-environment": f"(env -i setsid sh -c 'sleep {_RUN}5 & sleep {_RUN}5' &); sleep {_RUN}5",
    "everything": f"""
        trap '' TERM
        (env -i setsid sh -c "trap '' TERM; (setsid sleep {_RUN}6 &); while :; do sleep {_RUN}6; done" &)
        sleep {_RUN}6 &
        while :; do sleep {_RUN}6; done
    """,
}

TAGS = {name: f"{_RUN}{number}" for number, name in enumerate(TREES, 1)}
#: Those that have cleared their environment: nothing tells of which attempt they are.
UNMARKED = ("empty-environment", "everything")

APP = f"""
import re, socket

for name, command in {TREES!r}.items():
    app.shell(name, f"echo begun; {{command}}", timeout="2s", grace="1s", retry=Retry.none())

STUCK = {{"timeout": "{STUCK_S}s", "retry": Retry.none(), "overlap": "allow"}}


@app.task(**STUCK)
def asleep(context: Context) -> None:
    witness(context, "start")
    time.sleep(3600)


@app.task(**STUCK)
def reads_a_socket(context: Context) -> None:
    witness(context, "start")
    ends = socket.socketpair()
    ends[0].recv(1)


@app.task(**STUCK)
def multiplies(context: Context) -> None:
    witness(context, "start")
    7 ** 10 ** 9


@app.task(**STUCK)
def matches(context: Context) -> None:
    witness(context, "start")
    re.match("(a+)+$", "a" * 60 + "b")


@app.task(overlap="allow")
def meets(context: Context, name: int, others: int) -> int:
    (HERE / f"meets-{{name}}").touch()
    while len(list(HERE.glob("meets-*"))) < others:
        time.sleep(0.01)
    return os.getpid()
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, APP)
    yield started
    started.close()


def _tagged(tag: str) -> list[str]:
    """Living processes whose command line shows the tag, whoever their parent is."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if tag in command and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {command}")
        except psutil.Error:
            continue  # ended while we looked
    return found


def _duration_s(services: Services, identity: str) -> float:
    query = "select started_us, finished_us from instance where id = ?"
    ((started_us, finished_us),) = services.rows(query, identity)
    return (int(str(finished_us)) - int(str(started_us))) / 1e6


def _slots_are_free(services: Services, count: int) -> bool:
    """Functions that wait for each other can only end if all of them run at once."""
    for left in services.folder.glob("meets-*"):
        left.unlink()
    ids = services.run(f"print(*[meets.submit(n, {count}).id for n in range({count})])").split()
    return services.until(lambda: all(services.state(identity) == ("success", 1) for identity in ids))


def _what_is_left(services: Services, names: list[str]) -> dict[str, list[str]]:
    """Run these at once; by name, what lived of each at the moment at which its attempt had ended."""
    ids = services.run(f"print(*[app.submit(name).id for name in {names!r}])").split()
    alive = dict(zip(ids, names, strict=True))
    services.until(lambda: all(_tagged(TAGS[name]) for name in names))
    left: dict[str, list[str]] = {}
    while alive:
        ended = services.until(
            lambda: [identity for identity in alive if services.state(identity) == ("failed", 1)]
        )
        for identity in ended:
            name = alive.pop(identity)
            left[name] = _tagged(TAGS[name])
            assert 2 <= _duration_s(services, identity) <= 3.5, name
    return left


def test_c125_a_time_out_ends_the_whole_tree_whatever_it_does_to_escape(services: Services) -> None:
    """Each ends at 2 to 3.5 s; when it has, nothing of it lives, and its slot takes the next one."""
    services.start_scheduler()
    services.start_worker(slots=len(TREES))
    marked = [name for name in TREES if name not in UNMARKED]
    assert _what_is_left(services, marked) == {name: [] for name in marked}
    for name in UNMARKED:
        assert _what_is_left(services, [name]) == {name: []}
    assert _codes(services) == {"TIMEOUT"}
    assert _slots_are_free(services, len(TREES))
    assert list((services.folder / "worker").glob("**/attempts/*")) == []


def test_c125_what_hides_from_its_own_attempt_ends_with_the_last_that_ran_beside_it(
    services: Services,
) -> None:
    """A stray without parents and environment may be of any command that ran when it began."""
    services.start_scheduler()
    services.start_worker(slots=len(TREES))
    _what_is_left(services, list(TREES))
    assert {name: _tagged(tag) for name, tag in TAGS.items()} == {name: [] for name in TREES}


def _codes(services: Services) -> set[object]:
    query = "select distinct json_extract(failure, '$.code') from instance where failure is not null"
    return {code for (code,) in services.rows(query)}


def _held(pid: int) -> dict[str, Counter[str]]:
    """What a worker has: its processes, its threads and its open descriptors, by kind."""
    supervisor = psutil.Process(pid)
    files = Counter(
        link.split(":")[0].split("-wal")[0] for link in (os.readlink(entry) for entry in _descriptors(pid))
    )
    names = Counter(child.name() for child in supervisor.children(recursive=True))
    return {"processes": names, "threads": Counter({"threads": supervisor.num_threads()}), "files": files}


def _descriptors(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    return [f"{folder}/{number}" for number in os.listdir(folder)]


def test_c127_blocking_functions_end_at_their_time_out_and_leave_both_slots_as_they_were(
    services: Services,
) -> None:
    """Twenty in a row on two slots, asleep, reading, or in C code that never lets go of the interpreter."""
    services.start_scheduler()
    services.start_worker(slots=2)
    pid = services.processes["worker"].pid
    warm = services.run("print(*[asleep.submit().id for _ in range(4)])").split()
    services.until(lambda: all(services.state(identity) == ("failed", 1) for identity in warm))
    assert _slots_are_free(services, 2)
    before = _held(pid)
    kinds = "(asleep, reads_a_socket, multiplies, matches)"
    ids = services.run(f"print(*[task.submit().id for _ in range(5) for task in {kinds}])").split()
    assert len(ids) == 20
    services.until(
        lambda: all(services.state(identity) == ("failed", 1) for identity in ids),
        within_s=20 * STUCK_S + 60,
    )
    lasted_s = sorted(_duration_s(services, identity) for identity in ids)
    assert lasted_s[0] >= STUCK_S
    # On a machine that has other things to do some are late; all of them would show a slow worker.
    assert lasted_s[10] <= STUCK_S + 0.6
    assert lasted_s[-1] <= STUCK_S + 3
    for identity in ids:
        assert services.witnessed(identity) == {1: ["start"]}
    assert _codes(services) == {"TIMEOUT"}
    assert _slots_are_free(services, 2)
    after = _held(pid)
    assert (after["processes"], after["files"]) == (before["processes"], before["files"])
    # The pool of an event loop grows up to its limit; one thread more for each attempt would be twenty.
    assert after["threads"].total() - before["threads"].total() <= (os.cpu_count() or 1) + 4
