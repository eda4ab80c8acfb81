"""Every kind of fault: what it is done to, how it is broken, how it is mended (docs/simulation.md)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.simulation.cluster import Cluster
from ostinato.simulation.network import Delay
from ostinato.simulation.node_host import NodeHost
from ostinato.simulation.worker_host import WorkerHost

#: A disk so slow that results wait for it.
_SLOW_DISK_US = 1_500 * MILLISECOND
#: Of the database's clock: nodes believe those up to 5 s at once, those beyond it once they have lasted 10 s.
_JUMPS_US = (SECOND, 4 * SECOND, 20 * SECOND, MINUTE)
#: These would leave behind what is due in hours and years; they do not last until they are believed.
_FAR_JUMPS_US = (60 * MINUTE, 10 * 365 * 24 * 60 * MINUTE)
_FAR_LASTS_US_MAX = 8 * SECOND
#: A node that starts has nothing to compare the time with that the database tells it.
_STARTS_NODES = frozenset({"node_killed", "node_stopped", "node_machine_lost"})


def _nothing() -> None:
    """It mends itself, or the keeper of the hosts does."""


class Plan(NamedTuple):
    """One fault to come. No two with the same `subject` are under way at a time."""

    target: str
    subject: str
    break_it: Callable[[], object]
    mend: Callable[[], object] = _nothing
    detail: str = ""
    #: Until it is mended the host named by `target` is not started again.
    keeps_down: bool = False


Kind = Callable[[Cluster, Random], Plan]


# ── processes and machines ────────────────────────────────────────────────────────────────────────────


def _a_node(cluster: Cluster, rng: Random) -> NodeHost:
    return rng.choice(cluster.nodes)


def _a_worker(cluster: Cluster, rng: Random) -> WorkerHost:
    return rng.choice(cluster.workers)


def _node_killed(cluster: Cluster, rng: Random) -> Plan:
    host = _a_node(cluster, rng)
    return Plan(host.name, f"life of {host.name}", host.kill, keeps_down=True)


def _node_stopped(cluster: Cluster, rng: Random) -> Plan:
    host = _a_node(cluster, rng)
    return Plan(host.name, f"life of {host.name}", host.stop)


def _node_frozen(cluster: Cluster, rng: Random) -> Plan:
    host = _a_node(cluster, rng)
    return Plan(host.name, f"process of {host.name}", host.freeze, host.thaw)


def _node_suspended(cluster: Cluster, rng: Random) -> Plan:
    machine, server = _a_node(cluster, rng).machine, cluster.server

    def suspend() -> None:
        server.silence(machine.name)
        machine.suspend()

    def wake() -> None:
        machine.wake()
        server.reconnect(machine.name)

    return Plan(machine.name, f"wire of {machine.name}", suspend, wake)


def _node_machine_lost(cluster: Cluster, rng: Random) -> Plan:
    host, server = _a_node(cluster, rng), cluster.server

    def lose() -> None:
        server.silence(host.name)
        host.crash_machine()

    def bring_back() -> None:
        server.reconnect(host.name)

    return Plan(host.name, f"wire of {host.name}", lose, bring_back, keeps_down=True)


def _worker_killed(cluster: Cluster, rng: Random) -> Plan:
    host = _a_worker(cluster, rng)
    return Plan(host.name, f"life of {host.name}", host.kill, keeps_down=True)


def _worker_drained(cluster: Cluster, rng: Random) -> Plan:
    host = _a_worker(cluster, rng)
    return Plan(host.name, f"life of {host.name}", host.drain)


def _supervisor_frozen(cluster: Cluster, rng: Random) -> Plan:
    host = _a_worker(cluster, rng)
    return Plan(host.name, f"process of {host.name}", host.freeze, host.thaw)


def _guardian_killed(cluster: Cluster, rng: Random) -> Plan:
    host = _a_worker(cluster, rng)
    return Plan(host.name, f"guardian of {host.name}", host.kill_guardian)


def _guardian_frozen(cluster: Cluster, rng: Random) -> Plan:
    host = _a_worker(cluster, rng)
    return Plan(host.name, f"guardian of {host.name}", host.freeze_guardian, host.thaw_guardian)


def _machine_frozen(cluster: Cluster, rng: Random) -> Plan:
    machine = _a_worker(cluster, rng).machine
    return Plan(machine.name, f"machine {machine.name}", machine.suspend, machine.wake)


def _machine_lost(cluster: Cluster, rng: Random) -> Plan:
    host = _a_worker(cluster, rng)
    return Plan(host.name, f"life of {host.name}", host.crash_machine, keeps_down=True)


def _machine_replaced(cluster: Cluster, rng: Random) -> Plan:
    host = _a_worker(cluster, rng)
    return Plan(
        host.name, f"life of {host.name}", lambda: host.crash_machine(keeps_disk=False), keeps_down=True
    )


def _disk_full(cluster: Cluster, rng: Random) -> Plan:
    disk = (machine := _a_worker(cluster, rng).machine).disk
    return Plan(
        machine.name,
        f"disk of {machine.name}",
        lambda: setattr(disk, "is_full", True),
        lambda: setattr(disk, "is_full", False),
    )


def _disk_slow(cluster: Cluster, rng: Random) -> Plan:
    disk = (machine := _a_worker(cluster, rng).machine).disk
    extra_us = rng.randrange(_SLOW_DISK_US)
    return Plan(
        machine.name,
        f"disk of {machine.name}",
        lambda: setattr(disk, "extra_us", extra_us),
        lambda: setattr(disk, "extra_us", 0),
    )


# ── clocks ────────────────────────────────────────────────────────────────────────────────────────────


def _clock_jumped(cluster: Cluster, rng: Random) -> Plan:
    machine = rng.choice(cluster.machines)
    by_us = rng.choice((-1, 1)) * rng.choice((SECOND, 20 * SECOND, 60 * MINUTE, 10 * 365 * 24 * 60 * MINUTE))
    return Plan(
        machine.name,
        f"clock of {machine.name}",
        lambda: machine.clock.jump_wall(by_us),
        lambda: machine.clock.jump_wall(-by_us),
        detail=f"{by_us / SECOND:g} s",
    )


def _clock_drifting(cluster: Cluster, rng: Random) -> Plan:
    clock = (machine := rng.choice(cluster.machines)).clock
    before_ppm = clock.drift_ppm
    ppm = rng.randint(-1_000, 1_000)
    return Plan(
        machine.name,
        f"rate of {machine.name}",
        lambda: clock.set_drift(ppm),
        lambda: clock.set_drift(before_ppm),
        detail=f"{ppm} ppm",
    )


def _database_clock_jumped(cluster: Cluster, rng: Random) -> Plan:
    """Jumps that are believed at once, after 10 s, or, by hours and years, set right before that."""
    server = cluster.server
    by_us = rng.choice((-1, 1)) * rng.choice(_JUMPS_US)
    is_far = rng.random() < 0.3 and not _STARTS_NODES & cluster.options.faults.keys()
    if is_far and all(host.node is not None for host in cluster.nodes):
        by_us = rng.choice((-1, 1)) * rng.choice(_FAR_JUMPS_US)

    def jump() -> None:
        server.jump_clock(by_us)
        if abs(by_us) > max(_JUMPS_US):
            server.later(rng.randrange(SECOND, _FAR_LASTS_US_MAX), server.correct_clock)

    return Plan(
        "database", "clock of the database", jump, server.correct_clock, detail=f"{by_us / SECOND:g} s"
    )


# ── network ───────────────────────────────────────────────────────────────────────────────────────────


def _link_silent(cluster: Cluster, rng: Random) -> Plan:
    ends = [_a_node(cluster, rng).name, _a_worker(cluster, rng).name]
    rng.shuffle(ends)
    sender, receiver = ends
    network = cluster.network
    return Plan(
        f"{sender}>{receiver}",
        f"link {sender}>{receiver}",
        lambda: network.silence(sender, receiver),
        lambda: network.mend(sender, receiver),
    )


def _worker_cut_off(cluster: Cluster, rng: Random) -> Plan:
    """Both ways, to and from every node."""
    worker, network = _a_worker(cluster, rng).name, cluster.network
    links = [pair for node in cluster.nodes for pair in ((worker, node.name), (node.name, worker))]

    def silence() -> None:
        for sender, receiver in links:
            network.silence(sender, receiver)

    def mend() -> None:
        for sender, receiver in links:
            network.mend(sender, receiver)

    return Plan(worker, f"links of {worker}", silence, mend)


def _stream_broken(cluster: Cluster, rng: Random) -> Plan:
    node, worker = _a_node(cluster, rng).name, _a_worker(cluster, rng).name
    half_open_us = rng.choice((0, SECOND, 20 * SECOND))
    return Plan(
        f"{worker}-{node}",
        f"streams {worker}-{node}",
        lambda: cluster.network.break_streams(worker, node, half_open_us_max=half_open_us),
    )


def _network_slow(cluster: Cluster, rng: Random) -> Plan:
    slow = Delay(
        us_min=rng.choice((100, 20 * MILLISECOND)),
        us_max=rng.choice((50 * MILLISECOND, 400 * MILLISECOND)),
        spike_share=rng.choice((0.0, 0.02, 0.2)),
        spike_us_max=rng.choice((SECOND, 5 * SECOND)),
    )
    return Plan(
        "network",
        "network",
        lambda: cluster.network.set_delay(slow),
        lambda: cluster.network.set_delay(Delay()),
    )


def _address_refused(cluster: Cluster, rng: Random) -> Plan:
    address = _a_node(cluster, rng).address
    network = cluster.network
    return Plan(
        address, f"address {address}", lambda: network.refuse(address), lambda: network.accept(address)
    )


# ── database ──────────────────────────────────────────────────────────────────────────────────────────


def _database_restarted(cluster: Cluster, rng: Random) -> Plan:
    server = cluster.server
    return Plan("database", "server", server.stop, server.start)


def _database_failed_over(cluster: Cluster, rng: Random) -> Plan:
    server = cluster.server
    down_us = rng.randrange(3 * SECOND)
    return Plan("database", "server", lambda: server.fail_over(down_us), server.start)


def _database_stalled(cluster: Cluster, rng: Random) -> Plan:
    return Plan("database", "server's work", cluster.server.stall, cluster.server.resume)


def _database_slow(cluster: Cluster, rng: Random) -> Plan:
    server = cluster.server
    share, us_max = rng.choice((0.02, 0.2, 1.0)), rng.choice((20, 200, 2_000)) * MILLISECOND
    return Plan(
        "database",
        "statements",
        lambda: server.slow_statements(share, (0, us_max)),
        lambda: server.slow_statements(0.0, (0, 1)),
    )


def _commits_slow(cluster: Cluster, rng: Random) -> Plan:
    server = cluster.server
    share, us_max = rng.choice((0.05, 0.5)), rng.choice((100, 1_000, 4_000)) * MILLISECOND
    return Plan(
        "database",
        "commits",
        lambda: server.slow_commits(share, (0, us_max)),
        lambda: server.slow_commits(0.0, (0, 1)),
    )


def _database_full(cluster: Cluster, rng: Random) -> Plan:
    server = cluster.server
    fits = rng.random() < 0.5
    return Plan("database", "room", lambda: server.fill_disk(small_writes_fit=fits), server.free_disk)


def _database_read_only(cluster: Cluster, rng: Random) -> Plan:
    return Plan("database", "mode", cluster.server.set_read_only, cluster.server.set_writable)


def _a_caller(cluster: Cluster, rng: Random) -> str:
    """A machine of a node, as what clients lose concerns them alone; now and then of a client."""
    if rng.random() < 0.2:
        return rng.choice(cluster.clients).name
    return _a_node(cluster, rng).name


def _database_refuses(cluster: Cluster, rng: Random) -> Plan:
    name, server = _a_caller(cluster, rng), cluster.server
    return Plan(name, f"wire of {name}", lambda: server.refuse(name), lambda: server.reconnect(name))


def _database_silent(cluster: Cluster, rng: Random) -> Plan:
    name, server = _a_caller(cluster, rng), cluster.server
    there, back = rng.choice(((True, True), (True, False), (False, True)))
    return Plan(
        name,
        f"wire of {name}",
        lambda: server.silence(name, there=there, back=back),
        lambda: server.reconnect(name),
        detail=f"there {there}, back {back}",
    )


def _wire_slow(cluster: Cluster, rng: Random) -> Plan:
    name, server = _a_caller(cluster, rng), cluster.server
    slow_us = (0, rng.choice((50, 500, 2_000)) * MILLISECOND)
    there_us, back_us = rng.choice(((slow_us, slow_us), (slow_us, (50, 500)), ((50, 500), slow_us)))
    return Plan(
        name,
        f"wire speed of {name}",
        lambda: server.slow_wire(name, there_us=there_us, back_us=back_us),
        lambda: server.fast_wire(name),
        detail=f"there {there_us}, back {back_us}",
    )


def _answers_lost(cluster: Cluster, rng: Random) -> Plan:
    name, server = _a_caller(cluster, rng), cluster.server
    there, back = rng.choice(((0.0, 0.05), (0.05, 0.0), (0.1, 0.3)))
    commits_only = rng.random() < 0.5
    return Plan(
        name,
        f"connections of {name}",
        lambda: server.break_connections(name, there_share=there, back_share=back, commits_only=commits_only),
        lambda: server.keep_connections(name),
    )


def _sessions_ended(cluster: Cluster, rng: Random) -> Plan:
    name, server = _a_caller(cluster, rng), cluster.server
    return Plan(name, f"sessions of {name}", lambda: server.end_sessions(name))


def _node_locks_lost(cluster: Cluster, rng: Random) -> Plan:
    name, server = _a_caller(cluster, rng), cluster.server
    return Plan(name, f"sessions of {name}", lambda: server.lose_node_locks(name))


def _hints_disturbed(cluster: Cluster, rng: Random) -> Plan:
    server = cluster.server
    share, late_us = rng.choice((0.3, 1.0)), rng.choice((1, SECOND))
    return Plan(
        "database",
        "hints",
        lambda: server.disturb_hints(lost_share=share, delay_us=(0, late_us)),
        server.calm_hints,
    )


#: By the words that the history and the options use.
KINDS: dict[str, Kind] = {
    "node_killed": _node_killed,
    "node_stopped": _node_stopped,
    "node_frozen": _node_frozen,
    "node_suspended": _node_suspended,
    "node_machine_lost": _node_machine_lost,
    "worker_killed": _worker_killed,
    "worker_drained": _worker_drained,
    "supervisor_frozen": _supervisor_frozen,
    "guardian_killed": _guardian_killed,
    "guardian_frozen": _guardian_frozen,
    "machine_frozen": _machine_frozen,
    "machine_lost": _machine_lost,
    "machine_replaced": _machine_replaced,
    "disk_full": _disk_full,
    "disk_slow": _disk_slow,
    "clock_jumped": _clock_jumped,
    "clock_drifting": _clock_drifting,
    "database_clock_jumped": _database_clock_jumped,
    "link_silent": _link_silent,
    "worker_cut_off": _worker_cut_off,
    "stream_broken": _stream_broken,
    "network_slow": _network_slow,
    "address_refused": _address_refused,
    "database_restarted": _database_restarted,
    "database_failed_over": _database_failed_over,
    "database_stalled": _database_stalled,
    "database_slow": _database_slow,
    "commits_slow": _commits_slow,
    "database_full": _database_full,
    "database_read_only": _database_read_only,
    "database_refuses": _database_refuses,
    "database_silent": _database_silent,
    "wire_slow": _wire_slow,
    "answers_lost": _answers_lost,
    "sessions_ended": _sessions_ended,
    "node_locks_lost": _node_locks_lost,
    "hints_disturbed": _hints_disturbed,
}
