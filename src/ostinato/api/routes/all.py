"""Every route of ``/api/v1``."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from ostinato.api.routes import (
    about,
    cluster,
    cron,
    documents,
    instance_acts,
    instances,
    namespaces,
    output,
    submissions,
    task_flags,
    task_put,
    tasks,
)

ROUTES: list[HTTPRouteHandler] = [
    *about.ROUTES,
    *namespaces.ROUTES,
    *tasks.ROUTES,
    *task_put.ROUTES,
    *task_flags.ROUTES,
    *submissions.ROUTES,
    *documents.ROUTES,
    *instances.ROUTES,
    *output.ROUTES,
    *instance_acts.ROUTES,
    *cluster.ROUTES,
    *cron.ROUTES,
]
