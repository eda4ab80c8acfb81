"""Floods of output through a real worker: constant memory, time by the byte, and what was cut is said."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.services import Services

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
MEGABYTE = 1_000_000
LINE_BYTES = (2_000 if FULL else 225) * MEGABYTE
FLOOD_BYTES = (5_000 if FULL else 300) * MEGABYTE
WRITE_COUNT = 1_000_000 if FULL else 300_000
#: What a worker keeps of an attempt and stores: head and tail.
KEPT_BYTES_MAX = 10 * 1024 * 1024 + 1000
LINE_KEPT_BYTES = 64 * 1024
GROWTH_KIB_MAX = 50_000

APP = f"""
FAST = {{"retry": Retry.none(), "overlap": "allow"}}

app.shell("line", "head -c {LINE_BYTES} /dev/zero | base64 -w0; echo; echo after", **FAST)
app.shell("quarter", "head -c {LINE_BYTES // 4} /dev/zero | base64 -w0", **FAST)
app.shell("flood", "echo first; yes 0123456789abcde | head -c {FLOOD_BYTES}; echo last", **FAST)


def writes(data):
    for _ in range({WRITE_COUNT}):
        os.write(1, data)


@app.task(**FAST)
def letters() -> None:
    writes(b"x")


@app.task(**FAST)
def lines() -> None:
    writes(b"x\\n")


@app.task(**FAST)
async def prints() -> None:
    for _ in range({WRITE_COUNT // 3}):
        print("x")


@app.task(**FAST)
async def prints_letters() -> None:
    for _ in range({WRITE_COUNT // 3}):
        print("x", end="")
    print("y" * 20_000_000)
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    started = Services(tmp_path_factory.mktemp("sizes"), APP)
    started.start_scheduler()
    started.start_worker(slots=1)
    # What is loaded at first use is not growth.
    _run(started, "quarter")
    _run(started, "letters")
    _run(started, "prints")
    yield started
    started.close()


def _run(services: Services, task: str) -> str:
    identity = services.run(f"print(app.submit({task!r}).id)")
    services.until(lambda: services.state(identity) == ("success", 1), within_s=600)
    return identity


def _kept(services: Services, identity: str, *, end: str = "") -> str:
    """What is stored of an ended attempt's output; its last part may come a moment after its end."""
    query = "select text from output where instance_id = ? order by sequence"

    def look() -> str:
        text = "".join(str(text) for (text,) in services.rows(query, identity))
        return text if text.endswith(end) else ""

    return services.until(look)


def _processes(services: Services) -> list[psutil.Process]:
    """The supervisor, and the processes of ours that last: no slot, whose memory is the task's own."""
    supervisor = psutil.Process(services.processes["worker"].pid)
    lasting = [
        child
        for child in supervisor.children(recursive=True)
        if any(name in " ".join(child.cmdline()) for name in ("loop_main", "guardian"))
    ]
    return [supervisor, *lasting]


class _Memory:
    """Highest resident memory of each process, from now on."""

    def __init__(self, processes: list[psutil.Process]) -> None:
        self._before = {}
        for process in processes:
            # 5 resets the high-water mark.
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            self._before[process.pid] = _peak_kib(process.pid)

    @property
    def grown_kib(self) -> int:
        return max(_peak_kib(pid) - before for pid, before in self._before.items())


def _peak_kib(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("task", ["line", "flood", "letters", "lines", "prints", "prints_letters"])
def test_c159_output_of_any_size_and_shape_costs_the_worker_no_memory(services: Services, task: str) -> None:
    memory = _Memory(_processes(services))
    identity = _run(services, task)
    assert memory.grown_kib < GROWTH_KIB_MAX
    assert len(_kept(services, identity).encode()) <= KEPT_BYTES_MAX
    assert _run(services, "quarter")


def test_c159_a_line_that_never_ends_is_cut_to_the_byte_and_what_follows_is_kept(services: Services) -> None:
    kept = _kept(services, _run(services, "line"), end="after\n")
    written_bytes = (LINE_BYTES + 2) // 3 * 4
    notice = f" … [{written_bytes - LINE_KEPT_BYTES} bytes of this line cut]"
    assert kept == "A" * LINE_KEPT_BYTES + notice + "\nafter\n"


def test_c159_a_flood_of_lines_keeps_head_and_tail_and_counts_the_rest(services: Services) -> None:
    kept = _kept(services, _run(services, "flood"), end="last\n")
    head, cut, tail = re.split(r"… \[(\d+) bytes of output cut here: over the limit of an attempt\]\n", kept)
    assert head.startswith("first\n")
    assert tail.endswith("last\n")
    assert len(head) + int(cut) + len(tail) == FLOOD_BYTES + len("first\nlast\n")


def test_c159_a_million_small_writes_arrive_whole(services: Services) -> None:
    notice = f" … [{WRITE_COUNT - LINE_KEPT_BYTES} bytes of this line cut]\n"
    assert _kept(services, _run(services, "letters"), end=notice) == "x" * LINE_KEPT_BYTES + notice
    lines = "x\n" * WRITE_COUNT
    identity = _run(services, "lines")
    services.until(lambda: _kept(services, identity) == lines)


def test_c159_the_supervisors_time_grows_with_the_bytes_and_no_faster(services: Services) -> None:
    supervisor = psutil.Process(services.processes["worker"].pid)

    def cpu_s() -> float:
        times = supervisor.cpu_times()
        return times.user + times.system

    before = cpu_s()
    _run(services, "quarter")
    quarter_s = cpu_s() - before
    before = cpu_s()
    _run(services, "line")
    whole_s = cpu_s() - before
    # Four times the bytes; joining what has come so far with each new piece would take sixteen times as long.
    assert whole_s < 8 * quarter_s + 0.2
