"""One attempt in a container: made, started, watched, stopped, removed.

A call that waits says *when* to look, and only a look says what is so: waits end early (a restarted engine,
Podman's polling), and answers get lost. While the engine is away nothing is known of the container. Then its
attempt is not reported as ended (I1) unless the kernel shows that it is over, or the engine has been away for
`EngineLimits.away_us` and the kernel shows nothing either.

What ends it is decided elsewhere: the supervisor asks for a stop, the guardian acts if that does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress

import msgspec

from ostinato.clock import Clock
from ostinato.core.definition import ContainerSpec
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.worker.command_output import CommandOutput
from ostinato.worker.engine.client import Engine
from ostinato.worker.engine.errors import EngineAway, EngineRefused, PullFailed
from ostinato.worker.engine.failures import (
    create_failure,
    exit_failure,
    lost_failure,
    missing_image,
    pull_failure,
    removed_failure,
    start_failure,
)
from ostinato.worker.engine.first_process import FirstProcess, find_first_process
from ostinato.worker.engine.frames import BadFrame
from ostinato.worker.engine.output import OutputReader
from ostinato.worker.engine.request import container_name, create_body, payload_archive
from ostinato.worker.engine.state import ContainerState
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, EventSink, StopReason
from ostinato.worker.executors.task_based import StopRequest, until_stopped_or
from ostinato.worker.guardian import Guardian
from ostinato.worker.guardian_messages import Container
from ostinato.worker.guardian_process import LEASE_ENDED
from ostinato.worker.waiting import within

#: Between the latest start and the lease's end: more than the guardian's margin, so that it never has to act
#: on what has just begun.
START_MARGIN_US = 3 * SECOND
#: How long before the kill that a lease's end asks for the engine is told: it takes longer than the kernel.
_KILL_AHEAD_US = 2 * SECOND
#: Between looks that have told nothing; doubled each time.
_PAUSE_US_MIN = 10 * MILLISECOND
_PAUSE_US_MAX = 200 * MILLISECOND
#: Between kills of what does not end.
_KILL_AGAIN_US = SECOND


class Unstarted(Exception):
    """Nothing of it runs or will run: a failure, or a refusal that is nobody's fault."""

    def __init__(self, failure: Failure | None = None, *, refused: str = "") -> None:
        super().__init__(refused or (failure.message if failure is not None else ""))
        self.failure = failure
        self.refused = refused


class EngineLost(Exception):
    """The engine stays away; the failure says whether the container is known to have ended."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class ContainerRun:
    """One container, from before it is made until it is removed."""

    def __init__(
        self,
        start: AttemptStart,
        *,
        engine: Engine,
        guardian: Guardian,
        labels: dict[str, str],
        clock: Clock,
        sink: EventSink,
        on_left: Callable[[str], None],
    ) -> None:
        """`on_left` is told the name of a container that could not be removed: the engine is away."""
        spec = start.spec.executor
        assert isinstance(spec, ContainerSpec)
        self._start = start
        self._spec = spec
        self._engine = engine
        self._guardian = guardian
        self._labels = labels
        self._clock = clock
        self._sink = sink
        self._on_left = on_left
        self.name = container_name(start.assignment.attempt_id)
        #: Once it is made; its name serves as well.
        self._container = self.name
        self._output = CommandOutput(start.assignment, clock=clock, sink=sink)
        self._process: FirstProcess | None = None
        self._is_guarded = False
        self._is_over = asyncio.Event()
        self._started_us: int | None = None

    def lease_moved(self) -> None:
        """Tell the guardian how long the container may go on now."""
        if self._is_guarded:
            engine = self._engine
            self._guardian.guard_container(
                Container(self.name, engine.socket, engine.version, self._start.lease_ends_us)
            )

    async def to_end(self, stop: StopRequest) -> AttemptFinished:
        """Run it. Returns once nothing of it runs, or the engine has been away for too long."""
        try:
            is_sure = await self._until_started(stop)
            return await self._from_start(stop, is_sure=is_sure)
        except Unstarted as unstarted:
            await self._remove()
            return self._finished(failure=unstarted.failure, refused=unstarted.refused)
        finally:
            if self._process is not None:
                self._process.close()

    # ── until it runs ─────────────────────────────────────────────────────────────────────────────────

    async def _until_started(self, stop: StopRequest) -> bool:
        """Make and start it; False if the engine has not said whether it has. Raises ``Unstarted``."""
        preparing = asyncio.create_task(self._prepare())
        try:
            await until_stopped_or(stop, preparing)
        finally:
            if not preparing.done():
                preparing.cancel()
            await asyncio.wait([preparing])
        if stop.reason is not None:
            # Looked at, whatever it is: what has been asked for decides.
            _ = preparing.cancelled() or preparing.exception()
            raise Unstarted(safe_failure("EXECUTOR_ERROR", "stopped before its container was started"))
        try:
            preparing.result()
            return await self._begin()
        except EngineAway as error:
            raise Unstarted(refused=f"the container engine does not answer: {error}") from error

    async def _prepare(self) -> None:
        await self._have_image()
        # Before it is made: the guardian must know of whatever there may be.
        self._is_guarded = True
        self.lease_moved()
        try:
            self._container = await self._engine.create(self.name, self._body())
            await self._engine.unpack(self._container, payload_archive(self._start.assignment.payload))
        except EngineRefused as error:
            raise Unstarted(create_failure(error.status, error.message)) from error

    def _body(self) -> dict[str, object]:
        start = self._start
        return create_body(start.assignment, start.spec, deadline_us=start.deadline_us, labels=self._labels)

    async def _have_image(self) -> None:
        image, policy = self._spec.image, self._spec.pull
        try:
            if policy != "always" and await self._engine.has_image(image):
                return
            if policy == "never":
                raise Unstarted(missing_image(image))
            await self._engine.pull(image)
        except (PullFailed, EngineRefused) as error:
            raise Unstarted(pull_failure(image, str(error))) from error

    async def _begin(self) -> bool:
        lease_us = self._start.lease_ends_us
        if lease_us is not None and self._clock.boot_us() >= lease_us - START_MARGIN_US:
            raise Unstarted(refused="its lease was over just before its start")
        try:
            await self._engine.start(self._container)
        except EngineRefused as error:
            if self._guardian.has_ended_container(self.name):
                raise Unstarted(refused="its lease was over just before its start") from error
            raise Unstarted(start_failure(error.message)) from error
        except EngineAway:
            return False
        return True

    # ── while it runs ─────────────────────────────────────────────────────────────────────────────────

    async def _from_start(self, stop: StopRequest, *, is_sure: bool) -> AttemptFinished:
        self._started_us = self._clock.wall_us()
        self._sink.started([self._start.assignment.attempt_id])
        reading = asyncio.create_task(self._read_output())
        ending = asyncio.create_task(self._until_over(is_sure=is_sure))
        try:
            if await until_stopped_or(stop, ending):
                await self._stop(stop, ending)
            await asyncio.wait([ending])
        finally:
            self._is_over.set()
            # The moment of its end, not that of the last of its output.
            finished = self._finished()
            await self._finish_output(reading)
        finished.failure = self._failure(ending)
        if finished.failure is None:
            result = {"exit_code": 0, "stdout_tail": self._output.stdout_tail}
            finished.result = msgspec.json.encode(result)
        await self._remove()
        return finished

    def _failure(self, ending: asyncio.Task[ContainerState | None]) -> Failure | None:
        try:
            state = ending.result()
        except EngineLost as lost:
            return lost.failure
        if state is None:
            is_ours = self._guardian.has_ended_container(self.name)
            return LEASE_ENDED if is_ours else removed_failure()
        if state.exit_code == 0:
            return None
        limit_bytes = self._start.spec.memory_limit_bytes
        return self._output.explain(exit_failure(state, memory_limit_bytes=limit_bytes))

    async def _until_over(self, *, is_sure: bool) -> ContainerState | None:
        """Its state once it has ended; None: it was removed. Raises ``EngineLost``."""
        heard_us = self._clock.boot_us()
        pause_us = _PAUSE_US_MIN
        while True:
            try:
                state = await self._engine.inspect(self._container)
            except EngineRefused as error:
                if error.status == 404:
                    return None
                self._give_up_if_lost(error.message, heard_us=heard_us)
            except EngineAway as error:
                self._give_up_if_lost(str(error), heard_us=heard_us)
            else:
                heard_us = self._clock.boot_us()
                if state.is_over:
                    return state
                if not is_sure and not state.was_started:
                    await self._end_unsure_start()
                self._hold_process(state)
                with suppress(EngineAway, EngineRefused):
                    await self._engine.wait(self._container)
                if self._clock.boot_us() >= heard_us + SECOND:
                    pause_us = _PAUSE_US_MIN
            # What came at once and told nothing must not become a loop without a pause.
            await self._sleep(pause_us)
            pause_us = min(2 * pause_us, _PAUSE_US_MAX)

    async def _end_unsure_start(self) -> None:
        """The start that was not answered may still come: not into a container that is gone."""
        with suppress(EngineAway, EngineRefused):
            await self._engine.remove(self._container)
            raise EngineLost(lost_failure("to the start", is_gone=True))

    def _hold_process(self, state: ContainerState) -> None:
        if self._process is None and state.pid:
            attempt_id = self._start.assignment.attempt_id
            self._process = find_first_process(state.pid, container=self._container, attempt_id=attempt_id)

    def _give_up_if_lost(self, reason: str, *, heard_us: int) -> None:
        """Raise ``EngineLost`` once there is nothing to wait for."""
        if self._process is not None:
            if self._process.is_gone():
                raise EngineLost(lost_failure(reason, is_gone=True))
        elif self._clock.boot_us() >= heard_us + self._engine.limits.away_us:
            raise EngineLost(lost_failure(reason, is_gone=False))

    async def _sleep(self, pause_us: int) -> None:
        await self._clock.sleep_until_us(self._clock.boot_us() + pause_us)

    # ── stop ──────────────────────────────────────────────────────────────────────────────────────────

    async def _stop(self, stop: StopRequest, ending: asyncio.Task[ContainerState | None]) -> None:
        asking = asyncio.create_task(self._ask_to_stop(stop))
        try:
            while not ending.done() and self._clock.boot_us() < (kill_us := _kill_us(stop)):
                stop.changed.clear()
                expired = asyncio.ensure_future(self._clock.sleep_until_us(kill_us))
                try:
                    await until_stopped_or(stop, ending, expired)
                finally:
                    expired.cancel()
            while not ending.done():
                await self._kill()
                again = asyncio.ensure_future(self._sleep(_KILL_AGAIN_US))
                await asyncio.wait([ending, again], return_when=asyncio.FIRST_COMPLETED)
                again.cancel()
        finally:
            asking.cancel()
            await asyncio.wait([asking])

    async def _ask_to_stop(self, stop: StopRequest) -> None:
        """Have the image's own signal sent; whoever does not hear it is killed."""
        grace_us = max(0, _kill_us(stop) - self._clock.boot_us())
        if grace_us:
            # Whole seconds, rounded up: the kill in time is ours.
            with suppress(EngineAway, EngineRefused):
                await self._engine.stop(self._container, grace_s=-(-grace_us // SECOND))

    async def _kill(self) -> None:
        try:
            await self._engine.kill(self._container)
        except EngineRefused:
            return  # it has ended already, or another kill is about to end it
        except EngineAway:
            if self._process is not None:
                self._process.kill()

    # ── output ────────────────────────────────────────────────────────────────────────────────────────

    async def _read_output(self) -> None:
        """Read all of it, again from where it broke off."""
        reader = OutputReader(self._output.write)
        while True:
            try:
                async with aclosing(self._engine.output(self._container)) as stream:
                    reader.begin()
                    async for data in stream:
                        reader.feed(data)
            except EngineRefused as error:
                if error.status != 404:
                    self._note(f"the container engine gives no output: {error.message}")
                return
            except (EngineAway, BadFrame):
                await self._sleep(_PAUSE_US_MAX)
                continue
            # It was read to its end, which is the container's as a rule.
            with suppress(TimeoutError):
                await within(self._clock, self._is_over.wait(), limit_us=self._engine.limits.output_us)
                return

    async def _finish_output(self, reading: asyncio.Task[None]) -> None:
        limit = asyncio.ensure_future(self._sleep(self._engine.limits.output_us))
        await asyncio.wait([reading, limit], return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()
        if not reading.done():
            self._note("the container engine did not send the end of the output: it may be incomplete")
            reading.cancel()
            await asyncio.wait([reading])
        self._output.finish()

    def _note(self, words: str) -> None:
        self._output.write("log", f"… [{words}]\n".encode())

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────

    async def _remove(self) -> None:
        if not self._is_guarded:
            return
        try:
            # By name: whether it was made may not be known.
            await self._engine.remove(self.name)
        except (EngineAway, EngineRefused):
            self._on_left(self.name)
        else:
            self._guardian.container_gone(self.name)

    def _finished(self, *, failure: Failure | None = None, refused: str = "") -> AttemptFinished:
        return AttemptFinished(
            attempt_id=self._start.assignment.attempt_id,
            started_us=self._started_us,
            finished_us=self._clock.wall_us(),
            failure=failure,
            refused=refused,
        )


def _kill_us(stop: StopRequest) -> int:
    """When to kill (boot time)."""
    return stop.kill_us - (_KILL_AHEAD_US if stop.reason is StopReason.LEASE_ENDED else 0)
