"""A handle on one submitted instance: its state, its result, its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from ostinato.control.explain import Story
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import MILLISECOND, SECOND, format_duration, parse_duration
from ostinato.core.payload import decode_json
from ostinato.core.states import TERMINAL_STATES, State
from ostinato.errors import OstinatoError, UnavailableError
from ostinato.sdk.client import Client
from ostinato.sdk.gateway.protocol import Gateway, Glimpse
from ostinato.sdk.retry import Duration

R_co = TypeVar("R_co", covariant=True)

_WAIT_FIRST_US = 10 * MILLISECOND
_WAIT_LONGEST_US = 250 * MILLISECOND
#: A wait for a result outlives a scheduler that is away for so long, such as one that is restarted.
ABSENCE_US_MAX = 60 * SECOND


class InstanceFailed(OstinatoError):
    """The instance ended without success, so there is no result.

    `state` is ``failed``, ``cancelled`` or ``skipped``; `failure` is that of the newest failed attempt, None
    where none failed. `code` of the error is ``INSTANCE_FAILED``; the failure has its own.
    """

    def __init__(self, instance: Glimpse) -> None:
        self.state = instance.state
        self.failure: Failure | None = instance.failure
        why = instance.reason
        if instance.failure is not None and instance.state is State.FAILED:
            why = f"{instance.failure.code}: {instance.failure.message}"
            if instance.reason and instance.reason not in why:
                why += f"; {instance.reason}"
        super().__init__(
            "INSTANCE_FAILED",
            f"instance {instance.id} of {instance.ref} is {instance.state}" + (f": {why}" if why else ""),
            subject=instance.id,
            hint=f"`ostinato instance show {instance.id}` tells its story",
        )


class ResultNotReady(UnavailableError, TimeoutError):
    """The instance had not ended when the time of `Handle.result` was over; it goes on.

    Also a ``TimeoutError``. Its `code` is ``RESULT_NOT_READY``.
    """


class Handle(Generic[R_co]):
    """Follows one instance. Each method has an ``_async`` twin.

    `created` says whether the submission made the instance; False where its key was live already.
    """

    def __init__(
        self,
        client: Client[Gateway],
        instance_id: str,
        *,
        created: bool = True,
        decode: Callable[[bytes], object] | None = None,
    ) -> None:
        self.id = instance_id
        self.created = created
        self._client = client
        self._decode = decode

    def __repr__(self) -> str:
        return f"<Handle of instance {self.id}>"

    def status(self) -> State:
        """State of the instance, a text such as ``"running"``. Raises ``INSTANCE_NOT_FOUND``."""
        return self._client.call(self._status)

    async def status_async(self) -> State:
        """As `status`."""
        return await self._client.call_async(self._status)

    def result(self, timeout: Duration | None = None) -> R_co:
        """What the task returned, once it has; its declared type where it names one.

        Waits at most `timeout` (None: as long as it takes; 0: not at all) and then raises
        ``ResultNotReady``, a ``TimeoutError``. Raises ``InstanceFailed`` if the instance ended otherwise, and
        ``INSTANCE_NOT_FOUND`` once its retention is over. A scheduler that goes away during the wait is
        waited for up to a minute, then ``SCHEDULER_UNREACHABLE`` is raised.
        """
        wait_us = None if timeout is None else parse_duration(timeout, field="timeout")
        return self._client.call(lambda gateway: self._result(gateway, wait_us))

    async def result_async(self, timeout: Duration | None = None) -> R_co:
        """As `result`."""
        wait_us = None if timeout is None else parse_duration(timeout, field="timeout")
        return await self._client.call_async(lambda gateway: self._result(gateway, wait_us))

    def cancel(self, reason: str = "") -> None:
        """Ask for the end of the instance, and return once the scheduler has taken note.

        What waits is cancelled then; what runs is asked to end. A second call changes nothing. Raises
        ``INSTANCE_TERMINAL`` if it has ended otherwise, and ``SCHEDULER_UNREACHABLE`` if nobody answers; the
        request stays recorded then.
        """
        self._client.call(lambda gateway: gateway.cancel(self.id, reason=reason))

    async def cancel_async(self, reason: str = "") -> None:
        """As `cancel`."""
        await self._client.call_async(lambda gateway: gateway.cancel(self.id, reason=reason))

    def story(self) -> Story:
        """Each attempt, which rule decided, what comes next and when. Raises ``INSTANCE_NOT_FOUND``."""
        return self._client.call(lambda gateway: gateway.story(self.id))

    async def story_async(self) -> Story:
        """As `story`."""
        return await self._client.call_async(lambda gateway: gateway.story(self.id))

    async def _status(self, gateway: Gateway) -> State:
        return (await gateway.look(self.id)).state

    async def _result(self, gateway: Gateway, wait_us: int | None) -> R_co:
        clock = self._client.clock
        deadline_us = None if wait_us is None else clock.boot_us() + wait_us
        interval_us = _WAIT_FIRST_US
        seen: Glimpse | None = None
        seen_us = clock.boot_us()
        while True:
            try:
                seen = await gateway.look(self.id)
                seen_us = clock.boot_us()
            except UnavailableError as error:
                away_us = clock.boot_us() - seen_us
                if error.code != "SCHEDULER_UNREACHABLE" or seen is None or away_us >= ABSENCE_US_MAX:
                    raise
            if seen.state in TERMINAL_STATES:
                return self._result_of(seen)
            now_us = clock.boot_us()
            if deadline_us is not None and now_us >= deadline_us:
                raise _not_ready(seen, wait_us or 0)
            await self._client.pause(now_us + interval_us, deadline_us=deadline_us)
            interval_us = min(interval_us * 2, _WAIT_LONGEST_US)

    def _result_of(self, instance: Glimpse) -> R_co:
        if instance.state is not State.SUCCESS:
            raise InstanceFailed(instance)
        encoded = b"null" if instance.result is None else instance.result
        decode = decode_json if self._decode is None else self._decode
        return cast(R_co, decode(encoded))


def _not_ready(instance: Glimpse, waited_us: int) -> ResultNotReady:
    held = f" ({instance.reason})" if instance.reason else ""
    return ResultNotReady(
        "RESULT_NOT_READY",
        f"instance {instance.id} of {instance.ref} is {instance.state}{held} "
        f"after a wait of {format_duration(waited_us)}",
        subject=instance.id,
        hint=f"`ostinato instance show {instance.id}` tells what it waits for",
    )
