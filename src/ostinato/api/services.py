"""What handlers work with, and who asks."""

from __future__ import annotations

from random import Random
from typing import Annotated

from litestar.params import HeaderParameter

from ostinato.clock import Clock
from ostinato.control.names import validate_text
from ostinato.control.pressure import PressureGate
from ostinato.control.requests import ANSWER_WAIT_US, BY_LENGTH_MAX, Asker
from ostinato.control.seen_tasks import SeenTasks
from ostinato.errors import UserError
from ostinato.store.protocol import Store
from ostinato.store.sampled_time import SampledTime

#: Who asked, where a request does not say.
BY_DEFAULT = "rest"


class Services:
    """The node's store, clock and chance."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        rng: Random,
        wait_us: int = ANSWER_WAIT_US,
        pressure: PressureGate | None = None,
    ) -> None:
        """`wait_us` is the longest wait for an owner's answer; `pressure` holds submissions back."""
        self.store = store
        self.clock = clock
        #: What submissions are dated by.
        self.time = SampledTime(store, clock)
        self.seen = SeenTasks()
        self.rng = rng
        self.wait_us = wait_us
        self.pressure = pressure

    def asker(self, by: str) -> Asker:
        """Who asks owners for something."""
        return Asker(clock=self.clock, rng=self.rng, by=by, wait_us=self.wait_us)


def said_by(
    header_by: Annotated[
        str | None,
        HeaderParameter(
            name="X-Ostinato-By",
            required=False,
            description=f"Who asks, for the history; `{BY_DEFAULT}` if left out.",
            schema_extra={"maxLength": BY_LENGTH_MAX},
        ),
    ] = None,
) -> str:
    """Who asks. Raises ``INVALID_VALUE``."""
    if header_by is None:
        return BY_DEFAULT
    by = header_text(header_by, field="X-Ostinato-By").strip()
    validate_text(by, field="X-Ostinato-By", length_max=BY_LENGTH_MAX)
    return by or BY_DEFAULT


def header_text(value: str, *, field: str) -> str:
    """A header as UTF-8, which is what people send; HTTP itself knows bytes. Raises ``INVALID_VALUE``."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        raise UserError("INVALID_VALUE", "is not UTF-8", field=field) from None
