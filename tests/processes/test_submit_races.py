"""Real processes that submit at once: one key is one instance, and a forked child is somebody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.services import Services

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
ROUND_COUNT = 1_000 if FULL else 50
NODE_COUNT = 5

APP = """
@app.task(overlap="allow")
def boot(context: Context, number: int) -> int:
    witness(context, "start")
    witness(context, "end")
    return number


@app.task(overlap="allow")
def visit(number: int) -> int:
    return number
"""

#: Each child is a node that starts: it waits for the others, then submits in the same moment.
RACE = f"""
import multiprocessing
context = multiprocessing.get_context("fork")
barrier = context.Barrier({NODE_COUNT})
app.apply()
app.close()

def node(name):
    seen = []
    for number in range({ROUND_COUNT}):
        barrier.wait()
        handle = boot.options(key=f"boot-{{number}}").submit(number)
        seen.append([handle.id, handle.created])
    (HERE / f"node-{{name}}.json").write_text(json.dumps(seen))

nodes = [context.Process(target=node, args=(name,)) for name in range({NODE_COUNT})]
for process in nodes:
    process.start()
for process in nodes:
    process.join()
    assert process.exitcode == 0
"""

#: A parent that has imported and used the SDK forks its workers, as pre-forking web servers do.
PRE_FORK = """
app.apply()
visit.submit(0)

def connections():
    folder = pathlib.Path("/proc/self/fd")
    return sum(str(link.readlink()).endswith("services.db") for link in folder.iterdir() if link.is_symlink())

inherited = connections()
children = []
for name in range(4):
    child = os.fork()
    if not child:
        ids = [visit.submit(number).id for number in range(100)]
        ids += [handle.id for handle in app.submit_many(visit, [{"number": 1}] * 100)]
        (HERE / f"child-{name}.json").write_text(json.dumps([ids, connections() - inherited]))
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
visit.submit(9)
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, APP)
    yield started
    started.close()


def test_c085_nodes_that_submit_one_key_at_once_get_one_instance_and_it_runs_once(services: Services) -> None:
    services.start_scheduler()
    services.run(RACE)
    answers = [
        json.loads((services.folder / f"node-{name}.json").read_text(encoding="utf-8"))
        for name in range(NODE_COUNT)
    ]
    for number in range(ROUND_COUNT):
        answered = [answer[number] for answer in answers]
        assert len({identity for identity, _ in answered}) == 1
        assert [created for _, created in answered].count(True) == 1
    assert services.rows("select count(*), count(distinct key) from instance") == [(ROUND_COUNT, ROUND_COUNT)]
    services.start_worker(slots=4)
    services.until(lambda: services.rows("select distinct state from instance") == [("success",)])
    for identity, _ in answers[0]:
        assert services.witnessed(identity) == {1: ["start", "end"]}


def test_c081_children_of_a_pre_forking_parent_have_ids_and_connections_of_their_own(
    services: Services,
) -> None:
    services.start_scheduler()
    services.run(PRE_FORK)
    told = [
        json.loads((services.folder / f"child-{name}.json").read_text(encoding="utf-8")) for name in range(4)
    ]
    ids = Counter(identity for child_ids, _ in told for identity in child_ids)
    assert len(ids) == 4 * 200
    assert all(opened >= 1 for _, opened in told)
    # One more from the parent before the fork, and one after it.
    assert services.rows("select count(*) from instance") == [(4 * 200 + 2,)]
    assert services.rows("pragma integrity_check") == [("ok",)]


def test_c081_a_second_scheduler_on_one_sqlite_file_is_refused_and_harms_nothing(services: Services) -> None:
    """One owner for every partition: the others are told which process it is, and may go on submitting."""
    services.start_scheduler()
    refused = subprocess.run(
        [
            sys.executable,
            "-m",
            "ostinato.cli",
            "scheduler",
            "--bind",
            "127.0.0.1:0",
            "--worker-bind",
            "127.0.0.1:0",
        ],
        cwd=services.folder,
        env=services.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 4
    assert "NODE_ALREADY_RUNNING" in refused.stderr
    assert f"process {services.processes['scheduler'].pid}" in refused.stderr
    assert "PostgreSQL" in refused.stderr
    services.start_worker()
    identity = services.run("print(visit.submit(1).id)")
    services.until(lambda: services.state(identity) == ("success", 1))
