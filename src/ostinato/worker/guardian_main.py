"""Main program of the guardian: parent of every process of every task, and the one that ends them.

It stands between the supervisor and the processes of tasks for one reason: what must not run on is ended
even if the supervisor is dead or frozen (docs/worker.md). As a child subreaper it becomes the parent of
whatever double-forks, so nothing gets out of its sight. One thread, one poll; it waits for nobody, and
imports next to nothing.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress

import msgspec

from ostinato.worker.framing import FrameSplitter
from ostinato.worker.guardian_containers import GuardedContainers
from ostinato.worker.guardian_messages import (
    CHANNEL_ARGUMENT,
    REPORT_MODULE,
    Configure,
    Container,
    ContainerGone,
    ContainersEnded,
    Exited,
    Farewell,
    FromGuardian,
    Lease,
    LeaseEnded,
    Mark,
    Nodes,
    NotSpawned,
    Ping,
    Pong,
    Release,
    Report,
    Spawn,
    Spawned,
    ToGuardian,
    encode_message,
    to_guardian,
)
from ostinato.worker.process_control import be_killed_first, become_subreaper, die_with_parent
from ostinato.worker.process_limits import apply_limits
from ostinato.worker.process_tree import (
    MARKER_VARIABLE,
    Family,
    Tree,
    TreeProcess,
    find_descendants,
    kill_and_wait,
    kill_trees,
    start_ticks_of,
)

#: Between the latest start and the lease's end.
START_MARGIN_US = 1_000_000
#: Between the kill and the lease's end: drift of clocks, and what killing takes. A supervisor that moves
#: kills a quarter of a second before.
KILL_MARGIN_US = 750_000
#: Longest wait while there are leases; short, as ``poll`` does not count suspended time.
_LEASE_LOOK_MS = 250
#: Least time that ending everything may take; longer where somebody waits for a lease to end anyway.
_END_US_MIN = 10_000_000
_READ_BYTES = 256 * 1024
_DESCRIPTORS_MAX = 16

#: Limits of open files before this program has raised its own.
_descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)


class _Root:
    """A process that was started for the supervisor."""

    def __init__(self, popen: subprocess.Popen[bytes], spawn: Spawn) -> None:
        self.popen = popen
        self.tree = Tree(TreeProcess(popen.pid, start_ticks_of(popen.pid)), spawn.marker)
        self.handle = os.pidfd_open(popen.pid)
        self.lease_ends_us = spawn.lease_ends_us
        self.has_exited = False


class Guardian:
    """The process's side of its socket to the supervisor. `lock` is held open until the process ends."""

    def __init__(self, channel: socket.socket, *, lock: int) -> None:
        self._channel = channel
        self._lock = lock
        self._splitter = FrameSplitter()
        self._descriptors: deque[int] = deque()
        self._outgoing = bytearray()
        self._poll = select.poll()
        self._containers = GuardedContainers(self._poll)
        self._roots: dict[int, _Root] = {}
        self._by_handle: dict[int, _Root] = {}
        self._reporters: list[subprocess.Popen[bytes]] = []
        self._configured = Configure(0)
        self._lease = Lease(0, 0)
        #: Processes were killed because of their lease, and the supervisor has not moved a lease since.
        self._owes_report = False
        self._is_over = False
        self._wake_read, wake_write = os.pipe()
        for end in (self._wake_read, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the supervisor says farewell or is gone; then nothing of its tree is left."""
        self._channel.setblocking(False)
        self._poll.register(self._channel, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        while not self._is_over:
            for descriptor, events in self._poll.poll(self._wait_ms()):
                if descriptor == self._channel.fileno():
                    if events & ~select.POLLOUT:
                        self._receive()
                    if not self._is_over:
                        self._flush()
                elif descriptor == self._wake_read:
                    self._reap_orphans()
                elif descriptor in self._by_handle:
                    self._on_exit(self._by_handle.pop(descriptor))
                elif self._containers.owns(descriptor):
                    self._containers.on_readable(descriptor, self._boot_us())
            self._end_unleased()

    # ── what the supervisor says ──────────────────────────────────────────────────────────────────────

    def _receive(self) -> None:
        messages: list[ToGuardian] = []
        while not self._is_over:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._channel, _READ_BYTES, _DESCRIPTORS_MAX)
            except BlockingIOError:
                break  # read to its end
            except ConnectionResetError:
                data, descriptors = b"", []
            self._descriptors.extend(descriptors)
            messages += [to_guardian.decode(body) for body in self._splitter.feed(data)]
            if not data:
                # Whatever was asked for last, there is nobody any more to whom it could be reported (I1).
                is_expected = any(isinstance(message, Farewell) for message in messages)
                self._end_all(is_expected=is_expected)
        for message in messages:
            if not self._is_over:
                self._handle(message)

    def _handle(self, message: ToGuardian) -> None:
        if isinstance(message, Spawn):
            self._spawn(message)
        elif isinstance(message, Mark):
            root = self._roots.get(message.pid)
            if root is not None:
                root.lease_ends_us = message.lease_ends_us
        elif isinstance(message, Release):
            self._release(message.pid)
        elif isinstance(message, Lease):
            if message.heartbeat_sequence != self._lease.heartbeat_sequence:
                # It goes on, and tells by itself what has ended.
                self._owes_report = False
            self._lease = message
        elif isinstance(message, Ping):
            self._send(Pong(message.number))
        elif isinstance(message, Farewell):
            self._end_all(is_expected=True)
        elif isinstance(message, Nodes):
            report = self._configured.report
            if report is not None and report.addresses:
                report.addresses = message.addresses
        elif isinstance(message, Container):
            self._containers.guard(message)
        elif isinstance(message, ContainerGone):
            self._containers.forget(message.name)
        else:
            self._configured = message

    def _send(self, message: FromGuardian) -> None:
        self._outgoing += encode_message(message)
        self._flush()

    def _flush(self) -> None:
        # Never waits: a supervisor that is frozen does not read, and must not freeze its guardian.
        try:
            while self._outgoing:
                del self._outgoing[: self._channel.send(self._outgoing)]
        except BlockingIOError:
            self._poll.modify(self._channel, select.POLLIN | select.POLLOUT)
        except (BrokenPipeError, ConnectionResetError):
            self._outgoing.clear()
        else:
            self._poll.modify(self._channel, select.POLLIN)

    # ── processes ─────────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, spawn: Spawn) -> None:
        descriptors = [self._descriptors.popleft() for _ in range(spawn.descriptor_count)]
        try:
            if self._is_lease_over(spawn.lease_ends_us, START_MARGIN_US):
                self._send(
                    NotSpawned(
                        spawn.number, 0, "its lease was over just before its start", is_lease_over=True
                    )
                )
                return
            root = _Root(_start(spawn, descriptors), spawn)
        except OSError as error:
            filename = os.fsdecode(error.filename) if error.filename is not None else ""
            self._send(NotSpawned(spawn.number, error.errno or 0, error.strerror or str(error), filename))
        except (ValueError, subprocess.SubprocessError) as error:
            self._send(NotSpawned(spawn.number, 0, str(error)))
        else:
            self._roots[root.popen.pid] = root
            self._by_handle[root.handle] = root
            self._poll.register(root.handle, select.POLLIN)
            self._send(Spawned(spawn.number, root.popen.pid, root.tree.root.start_ticks))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _on_exit(self, root: _Root) -> None:
        self._poll.unregister(root.handle)
        os.close(root.handle)
        root.has_exited = True
        root.lease_ends_us = None
        # Looked at, not reaped: until the supervisor has ended the tree the pid must stay its own.
        ended = os.waitid(os.P_PID, root.popen.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "WNOHANG was not given"
        is_status = ended.si_code == os.CLD_EXITED
        return_code = ended.si_status if is_status else -ended.si_status
        self._send(Exited(root.popen.pid, return_code, is_alone=self._reap_orphans() == 0))

    def _release(self, pid: int) -> None:
        root = self._roots.get(pid)
        if root is not None and root.has_exited:
            root.popen.wait()
            del self._roots[pid]

    def _reap_orphans(self) -> int | None:
        """Reap orphans that have ended; returns how many have not, None if nobody can say."""
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        self._reporters = [reporter for reporter in self._reporters if reporter.poll() is None]
        known = self._roots.keys() | {reporter.pid for reporter in self._reporters}
        children = _children()
        if children is None:
            return None
        left_count = 0
        for pid in children:
            if pid not in known:
                with suppress(ChildProcessError):
                    left_count += os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is None
        return left_count

    # ── leases ────────────────────────────────────────────────────────────────────────────────────────

    def _wait_ms(self) -> int | None:
        looks = [
            root.lease_ends_us - KILL_MARGIN_US
            for root in self._roots.values()
            if root.lease_ends_us is not None
        ]
        if self._owes_report:
            looks.append(self._lease.last_end_us - KILL_MARGIN_US)
        containers_us = self._containers.next_us()
        if containers_us is not None:
            looks.append(containers_us)
        if not looks:
            return None
        left_ms = (min(looks) - self._boot_us()) // 1000 + 1
        return max(0, min(_LEASE_LOOK_MS, left_ms))

    def _is_lease_over(self, lease_ends_us: int | None, margin_us: int) -> bool:
        return lease_ends_us is not None and self._boot_us() >= lease_ends_us - margin_us

    def _boot_us(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000 + self._configured.clock_offset_us

    def _end_unleased(self) -> None:
        """Kill what the lease no longer covers and was not stopped: the supervisor is frozen, or slow."""
        over = [
            root for root in self._roots.values() if self._is_lease_over(root.lease_ends_us, KILL_MARGIN_US)
        ]
        if self._is_over:
            return
        if over:
            self._kill_unleased(over)
        ended = self._containers.end_unleased(self._boot_us())
        if ended:
            self._send(ContainersEnded(ended))
            self._owes_report = True
        if self._owes_report and self._is_lease_over(self._lease.last_end_us, KILL_MARGIN_US):
            # Not before: the report frees what was assigned under any lease, of whatever node.
            self._owes_report = self._containers.has_leased() or any(
                root.lease_ends_us is not None for root in self._roots.values()
            )
            if not self._owes_report:
                self._report("its lease ended", heartbeat_sequence=self._lease.heartbeat_sequence)

    def _kill_unleased(self, over: list[_Root]) -> None:
        try:
            kill_trees([root.tree for root in over], self._family())
        except OSError as error:
            # Tried again at the next look: nobody else would end them.
            _say(f"processes whose lease is over could not be ended: {error}")
            return
        for root in over:
            root.lease_ends_us = None
        self._send(LeaseEnded([root.popen.pid for root in over]))
        self._owes_report = True

    def _family(self) -> Family:
        return Family(os.getpid(), [root.tree for root in self._roots.values()])

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────

    def _end_all(self, *, is_expected: bool) -> None:
        self._is_over = True
        # Whoever waits for the end of what the supervisor prints shall not wait for this process.
        silence = os.open(os.devnull, os.O_RDWR)
        if not is_expected:
            _say("the supervisor is gone; its processes are ended")
        os.dup2(silence, 1)
        limit_us = self._boot_us() + max(self._lease.worker_lease_us, _END_US_MIN)
        # Asked for first: an engine takes its time.
        until_containers_ended = self._containers.end_all(now_us=self._boot_us)
        is_ended = self._end_descendants(limit_us)
        if not until_containers_ended(limit_us):
            _say("containers could not be ended: their engine does not answer")
            is_ended = False
        # Not before: it tells the supervisor that nothing is left.
        self._channel.close()
        if is_ended and not is_expected and self._report("the supervisor is gone", heartbeat_sequence=None):
            os.dup2(silence, 2)
            left_us = max(0, limit_us - self._boot_us())
            with suppress(subprocess.TimeoutExpired):
                self._reporters[-1].wait(left_us / 1e6)

    def _end_descendants(self, limit_us: int) -> bool:
        """Kill and reap everything that descends from this process; False if some of it would not end."""
        while True:
            try:
                members = find_descendants(os.getpid())
                kill_and_wait(members)
            except OSError as error:
                if self._boot_us() > limit_us:
                    _say(f"the processes of tasks could not be ended: {error}")
                    return False
                select.poll().poll(_LEASE_LOOK_MS)
                continue
            with suppress(ChildProcessError):
                while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
                    pass
            if not members or self._boot_us() > limit_us:
                return not members

    def _report(self, reason: str, *, heartbeat_sequence: int | None) -> bool:
        """Tell the nodes, from a process of its own; False if there is nobody to tell."""
        target = self._configured.report
        if target is None or not target.addresses or not self._lease.worker_lease_us:
            return False
        report = Report(
            target=target,
            reason=reason,
            heartbeat_sequence=heartbeat_sequence,
            limit_us=self._lease.worker_lease_us,
        )
        reporter = subprocess.Popen(
            [sys.executable, "-m", REPORT_MODULE],
            # Marked, so that it is not taken for an orphan of a task.
            env={**os.environ, MARKER_VARIABLE: "guardian"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._lock] if self._lock >= 0 else [],
            start_new_session=True,
        )
        assert reporter.stdin is not None, "it is a pipe"
        # Not on its command line: everybody can read those, and it holds the token.
        with suppress(BrokenPipeError):
            reporter.stdin.write(msgspec.json.encode(report))
            reporter.stdin.close()
        self._reporters.append(reporter)
        return True


def _start(spawn: Spawn, descriptors: list[int]) -> subprocess.Popen[bytes]:
    stdout, stderr, *passed = descriptors
    channel = str(passed[0]).encode() if passed else b""
    limits, parent_pid = spawn.limits, os.getpid()
    own_limit = _descriptor_limit

    def prepare() -> None:
        die_with_parent(parent_pid)
        # Kept over exec: whatever the process starts stays below it while it lives.
        become_subreaper()
        be_killed_first()
        resource.setrlimit(resource.RLIMIT_NOFILE, own_limit)
        if limits is not None:
            apply_limits(limits)

    return subprocess.Popen(
        [channel if part == CHANNEL_ARGUMENT else part for part in spawn.command],
        env=spawn.environment,
        cwd=spawn.directory,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=passed,
        start_new_session=True,
        # Safe here: this process has one thread.
        preexec_fn=prepare,
    )


def _raise_descriptor_limit() -> None:
    """There may be many processes to hold; those that are started have the limit that they would have had."""
    global _descriptor_limit
    _descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptor_limit[1], _descriptor_limit[1]))


def _children() -> list[int] | None:
    """Of this process; None on a kernel that does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listing:
            return [int(number) for number in listing.read().split()]
    except FileNotFoundError:
        return None


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"ostinato guardian: {text}\n".encode())


def main() -> None:
    """Guard the supervisor whose socket is named on the command line."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    lock = int(sys.argv[2])
    for descriptor in (channel.fileno(), lock):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    become_subreaper()
    _raise_descriptor_limit()
    # A service manager may signal every process of the worker; when this one ends is not its decision.
    # Handlers, unlike ignoring them, are not inherited by what is started.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    Guardian(channel, lock=lock).run()


if __name__ == "__main__":
    main()
