"""Stores the output of attempts in groups; output is no state and needs no proof."""

from __future__ import annotations

from ostinato.core.failure.text import safe_text
from ostinato.core.instants import MILLISECOND
from ostinato.core.model import OutputChunk
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts

#: Chunks in one transaction.
BATCH_COUNT = 500
#: Output gathers for this long, so that chatty tasks do not cost a transaction a line.
GATHER_US = 50 * MILLISECOND


class OutputLoop(Loop):
    """Gathers chunks and appends them."""

    name = "output"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._store = parts.store
        self._waiting: list[OutputChunk] = []

    def add(self, chunks: list[OutputChunk]) -> None:
        """Take chunks; stored within some 50 ms."""
        for chunk in chunks:
            # A worker in another language may send what no store takes.
            chunk.text = safe_text(chunk.text)
        self._waiting.extend(chunks)
        self.wake_at(self._clock.boot_us() + GATHER_US)

    async def run_once(self) -> int | None:
        """Append up to one batch; a repeated one changes nothing, so a failed call is simply made again."""
        batch = self._waiting[:BATCH_COUNT]
        if not batch:
            return None
        await self._store.append_output(batch)
        del self._waiting[: len(batch)]
        return self._clock.boot_us() if self._waiting else None

    async def flush(self) -> None:
        """Store everything that is waiting."""
        while self._waiting:
            await self.run_once()
