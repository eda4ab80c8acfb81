"""Probes: what answers while all is well, asked again and again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND
from ostinato.settings_readers import Address, read_address

if TYPE_CHECKING:
    import httpx

_SCHEMES = ("http://", "https://")
_ANSWER_S = 2.0
_LOOK_US = 50 * MILLISECOND
_WATCH_US = 200 * MILLISECOND


class Probes:
    """All probes of a scenario. `away_us` adds up how long each did not answer while they were watched."""

    def __init__(self, probes: Mapping[str, str], *, clock: Clock) -> None:
        self._probes = dict(probes)
        self._clock = clock
        is_http = any(probe.startswith(_SCHEMES) for probe in probes.values())
        self._client = _client() if is_http else None
        self.away_us = dict.fromkeys(probes, 0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def silent(self) -> dict[str, str]:
        """Those that do not answer now, and why; asked all at once."""
        answers = await asyncio.gather(*(self._ask(probe) for probe in self._probes.values()))
        return {name: why for name, why in zip(self._probes, answers, strict=True) if why}

    async def until_all_answer(self, limit_us: int) -> dict[str, str]:
        """Wait until all answer at the same time; those that do not within the limit, and why."""
        end_us = self._clock.boot_us() + limit_us
        while found := await self.silent():
            if self._clock.boot_us() >= end_us:
                return found
            await self._clock.sleep_until_us(self._clock.boot_us() + _LOOK_US)
        return {}

    async def watch(self) -> None:
        """Add up how long each is away, until cancelled."""
        seen_us = self._clock.boot_us()
        while self._probes:
            found = await self.silent()
            now_us = self._clock.boot_us()
            for name in found:
                self.away_us[name] += now_us - seen_us
            seen_us = now_us
            await self._clock.sleep_until_us(now_us + _WATCH_US)

    async def _ask(self, probe: str) -> str:
        """Why it does not answer; empty if it does."""
        if self._client is not None and probe.startswith(_SCHEMES):
            return await _get(self._client, probe)
        return await connect(read_address(probe))


def _client() -> httpx.AsyncClient:
    import httpx

    # No connection is kept: one to a server that is gone would tell of its end, not of the new one.
    return httpx.AsyncClient(
        timeout=_ANSWER_S, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
    )


async def _get(client: httpx.AsyncClient, url: str) -> str:
    import httpx

    try:
        answer = await client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{type(error).__name__} {error}".strip()
    return "" if answer.is_success else f"answers {answer.status_code}"


async def connect(address: Address) -> str:
    """Why nobody accepts a connection there; empty if somebody does."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return f"does not accept within {_ANSWER_S:g} s"
    except OSError as error:
        # asyncio has a sentence of its own there, which says less.
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    writer.close()
    return ""
