"""Keeps a fork of the loop process from becoming a second one that reports its neighbours' attempts.

A task may call ``os.fork()`` and return, or raise, in the child. That child has the channel to the supervisor
and the event loop with everybody's coroutines: it must end before the loop turns on. Children that end by
themselves (``multiprocessing``, ``subprocess``) never come back here.
"""

from __future__ import annotations

import asyncio
import os
import threading
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

_T = TypeVar("_T")


class ForkGuard:
    """Of the process that `loop` runs in, by the thread that makes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, channel_descriptor: int) -> None:
        self._loop = loop
        self._channel_descriptor = channel_descriptor
        self._thread_id = threading.get_ident()
        self._is_forked = False
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        if self._is_forked:
            # A fork of the fork: the number may be something else's by now.
            return
        self._is_forked = True
        # By its number: closing the transport would tell the event loop, whose epoll is the parent's too.
        with suppress(OSError):
            os.close(self._channel_descriptor)
        if threading.get_ident() == self._thread_id:
            # For what is no attempt's own coroutine: a subtask, a callback.
            self._loop.call_soon(os._exit, 0)

    @types.coroutine
    def drive(self, work: Coroutine[Any, Any, _T]) -> Generator[Any, None, _T]:
        """Run `work` step by step; a forked child ends with the step in which it was forked."""
        error: BaseException | None = None
        while True:
            if self._is_forked:
                os._exit(0)
            try:
                awaited = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                value: _T = end.value
                return value
            finally:
                if self._is_forked:
                    os._exit(0)
            error = None
            try:
                yield awaited
            except BaseException as raised:  # noqa: BLE001 - handed on to the coroutine that is driven
                error = raised
