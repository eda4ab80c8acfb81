"""What attempts wrote: in pages, or as one text."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter
from litestar.response import Stream

from ostinato.api.bodies import OutputPage
from ostinato.api.paging import LIMIT_DEFAULT
from ostinato.api.parameters import InstanceId, Limit, ServicesOf
from ostinato.api.services import Services
from ostinato.control.queries import get_instance, validate_limit
from ostinato.control.shapes.instance import output_shape
from ostinato.core.model import OutputChunk
from ostinato.errors import UserError

#: Pieces read at once: a piece may be 64 KiB, and memory stays the same however much there is.
_READ_COUNT = 16
#: A page ends early rather than grow beyond this.
PAGE_BYTES_MAX = 1_048_576
ATTEMPT_MAX = 2**31 - 1
_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_AFTER = re.compile(r"(\d{1,10})\.(\d{1,18})", re.ASCII)

OfAttempt = Annotated[
    # A text, because Litestar takes "null" for no number at all.
    str | None,
    QueryParameter(
        name="attempt",
        required=False,
        description="Of this attempt alone.",
        schema_extra={"type": "integer", "minimum": 1, "maximum": ATTEMPT_MAX},
    ),
]
After = Annotated[
    str | None,
    QueryParameter(
        name="after",
        required=False,
        description="Only what follows this piece, `ATTEMPT.SEQUENCE`, as the page before said.",
        schema_extra={"pattern": "^[0-9]{1,10}\\.[0-9]{1,18}$"},
    ),
]


@get(
    "/instances/{instance_id:str}/output",
    operation_id="list_output",
    tags=["instances"],
    opt={"codes": ("INSTANCE_NOT_FOUND",)},
)
async def list_output(
    *,
    services: ServicesOf,
    instance_id: InstanceId,
    attempt: OfAttempt = None,
    after: After = None,
    limit: Limit = LIMIT_DEFAULT,
) -> OutputPage:
    """What its attempts wrote, in order. To follow it, ask again after the newest piece."""
    validate_limit(limit)
    number = _attempt(attempt)
    start = _start(number, after)
    await get_instance(services.store, instance_id)
    chunks: list[OutputChunk] = []
    size = 0
    more = False
    async for chunk in _chunks(services, instance_id, start=start, attempt=number):
        if len(chunks) == limit or size >= PAGE_BYTES_MAX:
            more = True
            break
        chunks.append(chunk)
        size += len(chunk.text)
    last = chunks[-1] if more else None
    return OutputPage(
        items=[output_shape(chunk) for chunk in chunks],
        cursor=None if last is None else f"{last.attempt}.{last.sequence}",
    )


@get(
    "/instances/{instance_id:str}/output.txt",
    operation_id="download_output",
    tags=["instances"],
    opt={"codes": ("INSTANCE_NOT_FOUND",), "text": True},
)
async def download_output(
    *, services: ServicesOf, instance_id: InstanceId, attempt: OfAttempt = None
) -> Stream:
    """All that its attempts wrote, or one of them, as a text."""
    number = _attempt(attempt)
    start = _start(number, None)
    await get_instance(services.store, instance_id)

    async def texts() -> AsyncIterator[bytes]:
        async for chunk in _chunks(services, instance_id, start=start, attempt=number):
            yield chunk.text.encode("utf-8", "replace")

    return Stream(
        texts(),
        media_type="text/plain",
        headers={"content-disposition": f'attachment; filename="{instance_id}.txt"'},
    )


async def _chunks(
    services: Services, instance_id: str, *, start: tuple[int, int], attempt: int | None
) -> AsyncIterator[OutputChunk]:
    while True:
        chunks = await services.store.output(instance_id, after=start, limit=_READ_COUNT)
        for chunk in chunks:
            if attempt is not None and chunk.attempt != attempt:
                return
            yield chunk
        if len(chunks) < _READ_COUNT:
            return
        start = (chunks[-1].attempt, chunks[-1].sequence)


def _start(attempt: int | None, after: str | None) -> tuple[int, int]:
    """The piece before the first that is wanted. Raises ``INVALID_VALUE``."""
    start = (0, -1)
    if after is not None:
        found = _AFTER.fullmatch(after)
        if found is None or int(found[1]) > ATTEMPT_MAX:
            raise UserError(
                "INVALID_VALUE", f"{after[:50]!a} is not ATTEMPT.SEQUENCE", field="after", hint="as 1.42"
            )
        start = (int(found[1]), int(found[2]))
    return start if attempt is None else max(start, (attempt, -1))


def _attempt(text: str | None) -> int | None:
    """The number of an attempt. Raises ``INVALID_VALUE``."""
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None or not 1 <= int(text) <= ATTEMPT_MAX:
        raise UserError("INVALID_VALUE", f"{text[:50]!a} is not within 1 to {ATTEMPT_MAX}", field="attempt")
    return int(text)


ROUTES = [list_output, download_output]
