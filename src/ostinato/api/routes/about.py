"""What answers here, and the description of the API itself."""

from __future__ import annotations

import asyncio
import platform
from functools import lru_cache
from importlib.metadata import version as installed_version

from litestar import Litestar, Response, get

from ostinato.api.bodies import VersionBody
from ostinato.api.openapi import describe
from ostinato.api.reading import StrictRequest


@get("/version", operation_id="get_version", tags=["about"])
async def get_version() -> VersionBody:
    """The version of Ostinato and of the Python that runs it."""
    return VersionBody(ostinato=installed_version("ostinato"), python=platform.python_version())


@get("/openapi.json", operation_id="get_openapi", tags=["about"])
async def get_openapi(request: StrictRequest) -> Response[bytes]:
    """This description: OpenAPI 3.1."""
    # Made when somebody wants it, and beside the loop: it takes a while.
    return Response(await asyncio.to_thread(_described, request.app), media_type="application/json")


@lru_cache(maxsize=1)
def _described(app: Litestar) -> bytes:
    return describe(app)


ROUTES = [get_version, get_openapi]
