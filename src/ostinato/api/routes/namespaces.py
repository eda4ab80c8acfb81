"""Namespaces."""

from __future__ import annotations

from litestar import get

from ostinato.api.bodies import NamespaceList
from ostinato.api.paging import LIMIT_MAX
from ostinato.api.parameters import ServicesOf
from ostinato.control.queries import list_namespaces as find_namespaces


@get("/namespaces", operation_id="list_namespaces", tags=["namespaces"])
async def list_namespaces(services: ServicesOf) -> NamespaceList:
    """Namespaces that have tasks, by name; the first thousand."""
    return NamespaceList(items=await find_namespaces(services.store, limit=LIMIT_MAX))


ROUTES = [list_namespaces]
