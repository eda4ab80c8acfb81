"""A scheduler and workers behind proxies, whose tasks leave traces; and one load on them, to be judged.

A `Round` submits its load, waits until all of it that runs until the gate is open does run, lets the test
act, opens the gate and has everything judged by the `Witness`. All clocks are boot time.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from support.processes_of import WorkerProcesses, living, processes_of, send
from support.proxy import Proxy
from support.services import Services
from support.witness import Event, Excused, InstanceFacts, Trail, Witness, boot_ns, boot_ns_of
from support.witness_trace import GATE, gate_of

from ostinato import App

TASKS = ("hold", "block_relaxed", "block", "kill_worker", "command", "escaping")
ENDED = ("success", "failed", "cancelled", "skipped")


@dataclass(frozen=True)
class Load:
    """How much of each task: what runs until the gate is open, and what ends by itself meanwhile."""

    gated: dict[str, int]
    short: dict[str, int] = field(default_factory=dict)
    short_seconds: tuple[float, ...] = (0.1, 0.4, 0.8, 1.2)

    @property
    def slots(self) -> int:
        """What needs a process, all together."""
        return sum(
            count for each in (self.gated, self.short) for task, count in each.items() if task != "hold"
        )


class Measures:
    """Times that tests have measured, in milliseconds."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def add(self, what: str, milliseconds: Iterable[float]) -> None:
        self._times.setdefault(what, []).extend(milliseconds)

    def table(self) -> list[str]:
        """A line each; none if nothing was measured."""
        if not self._times:
            return []
        width = max(map(len, self._times))
        head = f"{'milliseconds':{width}}  {'count':>6} {'least':>7} {'median':>7} {'most':>7}"
        return [head] + [
            f"{what:{width}}  {len(times):6} {min(times):7.0f} {median(times):7.0f} {max(times):7.0f}"
            for what, times in self._times.items()
        ]


class Stage:
    """The processes, started in `folder`; workers have `slots` each."""

    def __init__(
        self,
        folder: Path,
        *,
        slots: int,
        measures: Measures | None = None,
        database: str = "",
        worker_lease: str = "6s",
    ) -> None:
        """`database` is the URL of an empty one on a server; else there is a SQLite file."""
        self.measures = measures if measures is not None else Measures()
        self.traces = folder / "traces"
        self.traces.mkdir(parents=True)
        self.services = Services(
            folder,
            "from support.witness_app import app",
            preamble="",
            database=database,
            environment={"WITNESS_FOLDER": str(self.traces), "OSTINATO_WORKER_LEASE": worker_lease},
        )
        self.app = App("stage", self.services.database)
        self._slots = slots
        self._proxies: dict[str, Proxy] = {}
        self._round_count = 0

    def open(self, *workers: str) -> None:
        """Start the scheduler and workers; returns when their tasks are known.

        Over a server workers are told where the nodes are, so the first one's proxy is what they are told of:
        it has no way around that.
        """
        if not self.services.database.startswith("sqlite"):
            self.services.environment["OSTINATO_ADVERTISE"] = self.proxy(workers[0]).address
        self.services.start_scheduler()
        for name in workers:
            self.start_worker(name)
        self.services.until(lambda: len(self.services.rows("select name from task")) == len(TASKS))

    def start_worker(self, name: str) -> None:
        """Start a worker behind its proxy."""
        self.services.start_worker(
            name,
            slots=self._slots,
            scheduler=self.proxy(name).address,
            options=("--async-slots", "400", "--drain-timeout", "5s"),
        )

    def proxy(self, worker: str) -> Proxy:
        """What stands between a worker and the scheduler."""
        if worker not in self._proxies:
            self._proxies[worker] = Proxy(self.services.workers_address)
        return self._proxies[worker]

    def worker(self, name: str) -> WorkerProcesses:
        """The processes of a worker at this moment."""
        return processes_of(self.services.processes[name].pid)

    def freeze_worker(self, name: str) -> list[psutil.Process]:
        """Stop every process of a worker, those too that are started while others are being stopped."""
        frozen: list[psutil.Process] = []
        while new := [process for process in self.worker(name).all if process not in frozen]:
            freeze(new)
            frozen += new
        return frozen

    def power_off_worker(self, name: str) -> int:
        """Kill every process of a worker before any of them notices; returns when that began."""
        frozen = self.freeze_worker(name)
        began_ns = kill(frozen)
        self.services.kill(name)
        return began_ns

    @property
    def node(self) -> psutil.Process:
        """The scheduler's process."""
        return psutil.Process(self.services.processes["scheduler"].pid)

    def begin(self, load: Load) -> Round:
        """A round whose load runs."""
        self._round_count += 1
        round = Round(self, name=f"round-{self._round_count}")
        round.submit(load)
        round.wait_until_gated_run()
        return round

    def all_gone(self, tree: Sequence[psutil.Process], *, within_s: float) -> None:
        """Every process of a killed tree disappears; the failure names those that are left."""
        try:
            self.services.until(lambda: not living(tree), within_s=within_s)
        except AssertionError:
            left = [f"{process.pid} {' '.join(process.cmdline())}" for process in living(tree)]
            raise AssertionError("left of the tree:\n  " + "\n  ".join(left)) from None

    def close(self) -> None:
        """Kill everything that was started here, what has lost its parents too; idempotent."""
        self.app.close()
        self.services.kill_all()
        for process in psutil.Process().children(recursive=True):
            if str(self.services.folder) in _environment_of(process):
                send([process], signal.SIGKILL)
        psutil.wait_procs(psutil.Process().children(), timeout=3)
        for proxy in self._proxies.values():
            proxy.close()


class Round:
    """One load and what became of it."""

    def __init__(self, stage: Stage, *, name: str) -> None:
        self._stage = stage
        self._services = stage.services
        self._name = name
        self._folder = stage.traces / name
        self._folder.mkdir()
        self.witness = Witness(self._folder, self._services.rows)
        self.gated: list[str] = []
        self.short: list[str] = []

    # ── the load ──────────────────────────────────────────────────────────────────────────────────────

    def submit(self, load: Load) -> None:
        """Submit everything at once."""
        for task, count in load.gated.items():
            self.gated += self._submit(task, [None] * count)
        for task, count in load.short.items():
            seconds = load.short_seconds
            self.short += self._submit(task, [seconds[index % len(seconds)] for index in range(count)])

    def _submit(self, task: str, seconds: Sequence[float | None]) -> list[str]:
        entries = [{"round": self._name, "seconds": each} for each in seconds]
        return [handle.id for handle in self._stage.app.submit_many(task, entries)]

    def wait_until_gated_run(self, attempt: int = 1) -> None:
        """All attempts that wait for the gate are seen by the witness."""
        self._services.until(lambda: self._seen(self.gated, attempt))

    def go_on(self, seconds: float, *, since_ns: int | None = None) -> None:
        """Let the load run on until so much time has passed since then, or since now."""
        passed_s = 0.0 if since_ns is None else (boot_ns() - since_ns) / 1e9
        self._services.pass_time(max(0.0, seconds - passed_s))

    def open_gate(self) -> None:
        """Let everything end."""
        (self._folder / GATE).touch()

    def open_gate_of(self, attempt: int) -> None:
        """Let attempts of this number do what they wait with, and those of others go on waiting."""
        (self._folder / gate_of(attempt)).touch()

    def wait_until_ended(self) -> None:
        """Every instance is in a terminal state."""
        self._services.until(lambda: self.has_ended, within_s=90)

    @property
    def has_ended(self) -> bool:
        """Whether every instance is in a terminal state."""
        return all(facts.state in ENDED for facts in self.witness.facts(self._everything).values())

    def judge(self, *, excused: Sequence[Excused] = ()) -> None:
        """Open the gate, wait until everything has ended and have it judged."""
        self.open_gate()
        self.wait_until_ended()
        self.witness.judge(self._everything, excused=excused)

    # ── what became of it ─────────────────────────────────────────────────────────────────────────────

    def on(self, worker: str, *tasks: str) -> list[InstanceFacts]:
        """Gated instances that run on a worker now, those of `tasks` or all."""
        return [
            facts
            for facts in self.witness.facts(self.gated).values()
            if facts.state == "running" and facts.worker_name == worker and (not tasks or facts.task in tasks)
        ]

    def retried(
        self,
        victims: Sequence[InstanceFacts],
        *,
        since_ns: int,
        within_s: float,
        what: str,
        attempt: int = 2,
    ) -> dict[str, Trail]:
        """Wait until the next attempt of every victim runs; each has begun in time. Measures it."""
        assert victims, "the act has hit nothing"
        identities = [victim.id for victim in victims]
        self._services.until(lambda: self._seen(identities, attempt), within_s=within_s + 30)
        trails = self.witness.trails(identities)
        found = {identity: trails[identity][attempt - 1] for identity in identities}
        took_s = {identity: (trail.began_ns - since_ns) / 1e9 for identity, trail in found.items()}
        self._stage.measures.add(what, (seconds * 1e3 for seconds in took_s.values()))
        late = {identity: round(seconds, 3) for identity, seconds in took_s.items() if seconds > within_s}
        assert not late, f"{len(late)} of {len(took_s)} retried later than {within_s} s: {late}"
        return found

    def first_ends(self, victims: Sequence[InstanceFacts]) -> dict[str, Event]:
        """The row that ended the first attempt of each."""
        events = self.witness.events([victim.id for victim in victims])
        return {
            event.instance_id: event for event in events if event.attempt == 1 and event.kind != "late_result"
        }

    def decided_ns(self, victims: Sequence[InstanceFacts]) -> dict[str, int]:
        """When the first attempt of each was found to have ended, on the clock of the traces."""
        return {identity: boot_ns_of(event.at_us) for identity, event in self.first_ends(victims).items()}

    def late_results(self, victims: Sequence[InstanceFacts]) -> set[str]:
        """Those of which a late result was refused and kept in the history."""
        events = self.witness.events([victim.id for victim in victims])
        return {event.instance_id for event in events if event.kind == "late_result"}

    def expect_attempts(self, victims: Sequence[InstanceFacts], *numbers: int) -> None:
        """Victims are in one of these attempts, every other gated instance is in its first."""
        attempts = {facts.id: facts.attempt for facts in self.witness.facts(self.gated).values()}
        hit = {victim.id for victim in victims}
        wrong = {
            identity: attempt
            for identity, attempt in attempts.items()
            if attempt not in (numbers if identity in hit else (1,))
        }
        assert not wrong, (
            f"attempts other than {numbers} of {len(hit)} victims, 1 of others: {wrong}\n{self._why(wrong)}"
        )

    def _why(self, identities: Iterable[str]) -> str:
        """What the history says of instances, each saying once and how often, and the ends of all logs."""
        events = self.witness.events(identities)
        sayings = Counter((event.kind, event.code, event.message, event.sentence) for event in events)
        lines = [f"{count} times {' | '.join(map(str, saying))}" for saying, count in sayings.items()]
        return "\n".join([*lines, self._services.logs()])

    def _seen(self, identities: Sequence[str], attempt: int) -> bool:
        """Whether at least so many attempts of each have begun, by their traces."""
        counts = dict.fromkeys(identities, 0)
        for path in self._folder.iterdir():
            identity = path.name.split(".")[0]
            if identity in counts and path.stat().st_size:
                counts[identity] += 1
        return all(count >= attempt for count in counts.values())

    @property
    def _everything(self) -> list[str]:
        return [*self.gated, *self.short]


def freeze(processes: Iterable[psutil.Process]) -> int:
    """Stop processes; returns when that had been done."""
    send(processes, signal.SIGSTOP)
    return boot_ns()


def thaw(processes: Iterable[psutil.Process]) -> int:
    """Let stopped processes go on; returns when that began."""
    began_ns = boot_ns()
    send(processes, signal.SIGCONT)
    return began_ns


def kill(processes: Iterable[psutil.Process]) -> int:
    """Kill processes, of which there must be one; returns when that began."""
    processes = list(processes)
    assert processes, "there is no such process"
    began_ns = boot_ns()
    send(processes, signal.SIGKILL)
    return began_ns


def _environment_of(process: psutil.Process) -> str:
    """Everything that could name the stage that a process belongs to; empty once it has ended."""
    try:
        return " ".join([*process.environ().values(), *process.cmdline()])
    except psutil.Error:
        return ""
