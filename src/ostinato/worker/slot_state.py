"""What a task can change of its process, put back before the next attempt runs there.

Noted is what the imports of the user's modules have left, as they run only once; put back is what the task
itself changed. Whoever sets up a variable or a handler for good does so when its module is imported.
"""

from __future__ import annotations

import io
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import TextIO

from ostinato.core.failure.foreign import real_name
from ostinato.worker.leftovers import Leftovers

_STANDARD_DESCRIPTORS = (0, 1, 2)
#: Also those whose time may still come when the attempt has ended.
_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
#: All that there are, by number.
_RESOURCES = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})


class SlotState:
    """State of the process that attempts share; of the main thread only."""

    def __init__(self) -> None:
        # Duplicates are not inherited by what tasks start.
        self._kept = {number: os.dup(number) for number in _STANDARD_DESCRIPTORS}
        self._identities = {kept: _identity(kept) for kept in self._kept.values()}
        # O_PATH asks for no permission to list it.
        self._directory = os.open(".", os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY))
        self._directory_identity = _identity(self._directory)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._stdin, self._stdout, self._stderr = sys.stdin, sys.stdout, sys.stderr
        self._attributes = {
            id(stream): _attributes(stream) for stream in (self._stdin, self._stdout, self._stderr)
        }
        self._environ = os.environ
        self._path = sys.path
        self._leftovers = Leftovers()
        self._module_count = 0
        self.remember()

    def remember(self) -> None:
        """Note what the task finds when it begins.

        Between two attempts only an import changes that, which the number of modules shows.
        """
        if self._module_count == len(sys.modules):
            return
        self._module_count = len(sys.modules)
        self._variables = dict(_encoded(self._environ))
        self._path_entries = list(self._path)
        self._limits = {number: resource.getrlimit(number) for number in _RESOURCES}
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._leftovers.remember()

    def restore(self) -> bool:
        """Put everything back; False if the process is fit for no other attempt.

        It is not if that cannot be done, or if the task had left child processes: these are ended, but what
        the task's modules still believe of them is not known.
        """
        try:
            # First, as the rest may need what the task has denied itself.
            self._restore_limits()
            # Then these, as they may still write to what is put back.
            has_left = self._leftovers.end()
        except (OSError, ValueError):
            return False
        return self._put_back() and not has_left

    def _put_back(self) -> bool:
        flush_streams(sys.stdout, sys.stderr)
        try:
            self._restore_signals()
            self._restore_descriptors()
            self._restore_directory()
        except (OSError, ValueError):
            # The task has closed the descriptors that are kept for this, too.
            return False
        flush_streams(self._stdout, self._stderr)
        self._restore_streams()
        os.umask(self._umask)
        self._restore_environment()
        self._restore_path()
        return True

    def _restore_limits(self) -> None:
        for number, limits in self._limits.items():
            if resource.getrlimit(number) != limits:
                # A hard limit that was lowered comes back for root alone; others need a new process.
                resource.setrlimit(number, limits)

    def _restore_descriptors(self) -> None:
        for number, kept in self._kept.items():
            if _identity(kept) != self._identities[kept]:
                raise OSError(f"descriptor {kept} is another file now")
            if _identity_or_none(number) != self._identities[kept]:
                os.dup2(kept, number)
            # Shared by all duplicates, so a task that made its own output non-blocking changed ours.
            os.set_blocking(number, True)

    def _restore_directory(self) -> None:
        if _identity(self._directory) != self._directory_identity:
            raise OSError("the kept directory is another file now")
        # Always: whether a removed directory is still the same one is not worth asking.
        os.fchdir(self._directory)

    def _restore_signals(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._handlers.items():
            # None is a handler from outside Python, which cannot be set again from here.
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._signal_mask)

    def _restore_streams(self) -> None:
        self._stdin = self._usable(self._stdin, 0)
        self._stdout = self._usable(self._stdout, 1)
        self._stderr = self._usable(self._stderr, 2)
        sys.stdin, sys.stdout, sys.stderr = self._stdin, self._stdout, self._stderr

    def _usable(self, stream: TextIO, number: int) -> TextIO:
        known = self._attributes.pop(id(stream), None)
        if known is None or _attributes(stream) != known:
            stream = _new_stream(number)
            known = _attributes(stream)
        self._attributes[id(stream)] = known
        return stream

    def _restore_path(self) -> None:
        sys.path = self._path
        if self._path != self._path_entries:
            self._path[:] = self._path_entries

    def _restore_environment(self) -> None:
        os.environ = self._environ  # noqa: B003 - the same object again, should the task have replaced it
        now = _encoded(self._environ)
        if now != self._variables:
            for name in now.keys() - self._variables.keys():
                del self._environ[os.fsdecode(name)]
            for name, value in self._variables.items():
                if now.get(name) != value:
                    self._environ[os.fsdecode(name)] = os.fsdecode(value)


def _encoded(environ: os._Environ[str]) -> dict[bytes, bytes]:
    """Variables as they are kept: to decode all of them, twice an attempt, takes longer than all the rest."""
    return environ._data  # type: ignore[attr-defined, no-any-return]  # typeshed does not name it


def flush_streams(*streams: TextIO | None) -> None:
    """Flush what may be a stream; a task may have closed or replaced it, which only costs its own output."""
    for stream in streams:
        try:
            if stream is not None:
                stream.flush()
        except (AttributeError, ValueError):
            # Replaced by what only writes, or closed: nothing is held back there.
            continue
        except BaseException as error:  # noqa: BLE001 - the user's own stream; its attempt's output says so
            _write_note(f"[output may be lost: flushing it raised {real_name(type(error))}]\n")


def _write_note(text: str) -> None:
    # Closed by the task: then there is nobody to tell.
    with suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))


def _new_stream(descriptor: int) -> TextIO:
    if descriptor == 0:
        return open(descriptor, encoding="utf-8", closefd=False)
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def _attributes(stream: object) -> tuple[object, ...] | None:
    """How a stream writes; None if it does not any more, or is not one of ours."""
    if type(stream) is not io.TextIOWrapper:
        return None
    try:
        own = tuple(sorted(vars(stream)))
        return stream.closed, stream.encoding, stream.errors, stream.line_buffering, own
    except ValueError:
        # Its buffer has been detached.
        return None


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _identity_or_none(descriptor: int) -> tuple[int, int] | None:
    try:
        return _identity(descriptor)
    except OSError:
        # Closed, as a task may do.
        return None
