"""Chaos with an outside witness: nodes and workers are killed at random, the database is restarted.

Run ``python bench/soak.py --database postgresql://…|mysql://… [--seconds 600] [--rate 2000]``, or with
``--private postgres|mariadb`` on a server of its own, which is restarted twice. Three nodes and three
workers; every ``--kill-every`` seconds one of the six is killed with SIGKILL and started again a second
later.

Every task writes its start, its life and its end to a file of its process, which nothing of Ostinato reads
(``chaos/witness_app.py``). At the end what runs is drained, and the witness is compared with what was
accepted: nothing lost, no two executions of one instance at the same time, attempts within the policy. The
exit status is 1 if anything of that is wrong. ``--no-kills`` measures what the same load takes
undisturbed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from chaos.databases import Outsider, Restartable, private_server, upgrade
from chaos.processes import Member, Node, Worker, environment_of
from chaos.verdict import (
    Execution,
    Verdict,
    decision_latencies_ms,
    judge,
    read_accepted,
    read_executions,
)

_HERE = Path(__file__).parent
_RESTART_S = 1.0
_LOOK_S = 0.5


class Plan(NamedTuple):
    """What is to be done to the cluster, and how long it goes on."""

    seconds: float
    rate: float
    kill_every_s: float
    restart_count: int
    drain_s: float
    seed: int


class Cluster(NamedTuple):
    """All members, and the folder in which they write."""

    nodes: list[Node]
    workers: list[Worker]
    folder: Path

    @property
    def members(self) -> list[Member]:
        return [*self.nodes, *self.workers]


def build(
    folder: Path, database: str, *, node_count: int, worker_count: int, slots: tuple[int, int]
) -> Cluster:
    environment = environment_of(folder, database, worker_lease="6s")
    witness = folder / "witness"
    witness.mkdir()
    environment |= {"SOAK_WITNESS": str(witness), "PYTHONPATH": str(_HERE / "chaos")}
    nodes = [Node(number, folder=folder, environment=environment) for number in range(node_count)]
    workers = [
        Worker(
            number,
            nodes,
            app="witness_app:app",
            slots=slots[0],
            async_slots=slots[1],
            folder=folder,
            environment=environment,
        )
        for number in range(worker_count)
    ]
    return Cluster(nodes, workers, folder)


def disturb(
    cluster: Cluster, plan: Plan, *, restart: Callable[[], None] | None, going_on: Callable[[], bool]
) -> int:
    """Kill, start again, restart the database; returns how many were killed."""
    rng = random.Random(plan.seed)
    began = time.monotonic()
    restarts = [
        began + plan.seconds * (place + 1) / (plan.restart_count + 1)
        for place in range(plan.restart_count if restart else 0)
    ]
    next_kill = began + plan.kill_every_s
    while going_on():
        now = time.monotonic()
        if restart and restarts and now >= restarts[0]:
            restarts.pop(0)
            restart()
        if plan.kill_every_s and now >= next_kill:
            next_kill += plan.kill_every_s
            victim = rng.choice(cluster.members)
            victim.kill()
            time.sleep(_RESTART_S)
            victim.start()
        time.sleep(0.05)
    return sum(member.kill_count for member in cluster.members)


def drain(outsider: Outsider, *, limit_s: float) -> float:
    """Wait until nothing is left to do; seconds that it took."""
    began = time.monotonic()
    while (live := outsider.live_count()) and time.monotonic() - began < limit_s:
        time.sleep(_LOOK_S)
    taken = time.monotonic() - began
    if live:
        print(f"NOT DRAINED: {live} instances are left after {taken:.0f} s: {outsider.live_states()}")
    return taken


def tell(verdict: Verdict, outsider: Outsider, *, executions: Mapping[int, list[Execution]]) -> None:
    for name in ("lost", "overlaps", "beyond_policy"):
        found: list[str] = getattr(verdict, name)
        print(f"{name.replace('_', ' ')}: {len(found)}")
        for line in found[:20]:
            print(f"  {line}")
    print(
        f"executions: {verdict.execution_count:,} of {verdict.accepted_count:,} instances; "
        f"ran to the end more often than asked for: {verdict.repeated_count}"
    )
    offset_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    latencies = decision_latencies_ms(outsider.decisions(), executions, wall_offset_ns=offset_ns)
    if latencies:
        shown = ", ".join(
            f"{name} {latencies[min(len(latencies) - 1, int(len(latencies) * share))]:.1f}"
            for name, share in (("median", 0.5), ("p95", 0.95), ("p99", 0.99), ("most", 1.0))
        )
        print(f"end of a failed attempt → commit of its retry, {len(latencies):,} times, ms: {shown}")


def run(cluster: Cluster, plan: Plan, *, outsider: Outsider, restart: Callable[[], None] | None) -> Verdict:
    accepted_file = cluster.folder / "accepted"
    for node in cluster.nodes:
        node.start()
    for node in cluster.nodes:
        node.wait_until_ready()
    for worker in cluster.workers:
        worker.start()
    outsider.wait_for_tasks()
    submitter = subprocess.Popen(
        [
            sys.executable,
            str(_HERE / "chaos/submitting.py"),
            str(plan.rate),
            str(plan.seconds),
            str(accepted_file),
        ],
        env=cluster.nodes[0].environment,
    )
    began = time.monotonic()
    killed = disturb(cluster, plan, restart=restart, going_on=lambda: submitter.poll() is None)
    submitted_s = time.monotonic() - began
    if submitter.returncode:
        raise SystemExit("the submitter ended with an error")
    for member in cluster.members:
        if not member.is_running:
            member.start()
    drained_s = drain(outsider, limit_s=plan.drain_s)
    accepted = read_accepted(accepted_file)
    executions = read_executions(cluster.folder / "witness")
    verdict = judge(accepted, outsider.rows(), executions=executions)
    print(
        f"{len(accepted):,} accepted in {submitted_s:.0f} s ({len(accepted) / submitted_s:,.0f}/s), "
        f"drained {drained_s:.1f} s later; {killed} kills, {plan.restart_count if restart else 0} restarts"
    )
    tell(verdict, outsider, executions=executions)
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--database")
    target.add_argument("--private", choices=("postgres", "mariadb"))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--async-slots", type=int, default=300)
    parser.add_argument("--kill-every", type=float, default=5)
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--drain", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="keep witness and logs there")
    options = parser.parse_args()
    plan = Plan(
        options.seconds,
        options.rate,
        0 if options.no_kills else options.kill_every,
        0 if options.no_kills else options.restarts,
        options.drain,
        options.seed,
    )
    with ExitStack() as stack:
        server: Restartable | None = None
        database = options.database
        if options.private:
            server = stack.enter_context(private_server(options.private))
            database = server.url
        if options.folder:
            folder = Path(options.folder)
            folder.mkdir(parents=True)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upgrade(database)
        outsider = stack.enter_context(Outsider(database))
        cluster = build(
            folder,
            database,
            node_count=options.nodes,
            worker_count=options.workers,
            slots=(options.slots, options.async_slots),
        )
        try:
            verdict = run(cluster, plan, outsider=outsider, restart=server.restart if server else None)
        finally:
            for member in reversed(cluster.members):
                member.stop()
        sys.exit(0 if verdict.is_good else 1)


if __name__ == "__main__":
    main()
