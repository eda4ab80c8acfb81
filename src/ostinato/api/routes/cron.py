"""What a cron expression will do, computed by the code that fires it."""

from __future__ import annotations

import asyncio

from litestar import post
from litestar.params import JSONBody

from ostinato.api.bodies import FireList, PreviewBody
from ostinato.api.parameters import ServicesOf
from ostinato.core.instants import parse_instant
from ostinato.core.schedule.preview import preview_cron


@post("/cron/preview", operation_id="preview_cron", tags=["cron"], status_code=200)
async def preview(services: ServicesOf, data: JSONBody[PreviewBody]) -> FireList:
    """The next fires strictly after an instant, each with the zone's offset then."""
    if data.start is None:
        start_us = await services.store.now_us()
    else:
        start_us = parse_instant(data.start, field="start")
    # An expression that fires once in a few years is searched for long, and the scheduler shares the loop.
    fires = await asyncio.to_thread(preview_cron, data.expression, data.timezone, start_us, data.count)
    return FireList(fires=fires)


ROUTES = [preview]
