"""The API of a node, ``/api/v1``: Litestar behind the guard."""

from __future__ import annotations

from random import Random

from litestar import Litestar, Request, Response, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute

from ostinato.api.addresses import Addresses
from ostinato.api.guard import Guard, Limits
from ostinato.api.openapi import OPENAPI_CONFIG
from ostinato.api.problem import PROBLEM_TYPE, encode_problem, headers_of, log_bug, problem_of
from ostinato.api.reading import Parameters, StrictRequest, check_query, parameters_of, refused_anyway
from ostinato.api.routes.all import ROUTES
from ostinato.api.services import Services, said_by
from ostinato.clock import Clock
from ostinato.control.pressure import PressureGate
from ostinato.control.requests import ANSWER_WAIT_US
from ostinato.errors import InternalError, UserError
from ostinato.store.protocol import Store

ROOT = "/api/v1"


def build_app(
    *,
    store: Store,
    clock: Clock,
    rng: Random,
    limits: Limits | None = None,
    wait_us: int = ANSWER_WAIT_US,
    pressure: PressureGate | None = None,
) -> Guard:
    """The API over an open store. `wait_us` is the longest wait for an owner's answer.

    `pressure` holds submissions back.
    """
    app = build_litestar(Services(store=store, clock=clock, rng=rng, wait_us=wait_us, pressure=pressure))
    routes = [
        (route.path_format, set(route.methods) - {"OPTIONS"})
        for route in app.routes
        if isinstance(route, HTTPRoute)
    ]
    return Guard(app, addresses=Addresses(routes), limits=limits if limits is not None else Limits())


def build_litestar(services: Services) -> Litestar:
    """The routes without the guard."""
    known: dict[str, Parameters] = {}

    def before_request(request: Request[None, None, State]) -> None:
        parameters = known[str(_handler(request).operation_id)]
        check_query(request.scope["query_string"], parameters)
        for name in parameters.headers:
            if len(request.headers.getall(name, [])) > 1:
                raise UserError("INVALID_VALUE", "is given more than once", field=name)

    app = Litestar(
        [Router(ROOT, route_handlers=ROUTES)],
        dependencies={
            "services": Provide(lambda: services, sync_to_thread=False),
            "by": Provide(said_by, sync_to_thread=False),
        },
        exception_handlers={Exception: _refuse},
        before_request=before_request,
        request_class=StrictRequest,
        openapi_config=OPENAPI_CONFIG,
        logging_config=None,
        # The guard has measured and read the body.
        request_max_body_size=None,
    )
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                known[str(handler.operation_id)] = parameters_of(
                    handler, path_parameters=route.path_parameters.keys()
                )
    return app


def _handler(request: Request[None, None, State]) -> HTTPRouteHandler:
    handler = request.route_handler
    if not isinstance(handler, HTTPRouteHandler):
        raise InternalError("INTERNAL", "a request reached what is no route")
    return handler


def _refuse(request: Request[None, None, State], error: Exception) -> Response[bytes]:
    """The problem that an error is; one that nobody foresaw is a bug, and is said in the log."""
    meant: Exception = error
    if isinstance(error, HTTPException):
        meant = refused_anyway(error) or error
    log_bug(meant, method=request.method, path=request.scope["path"])
    problem = problem_of(meant)
    return Response(
        encode_problem(problem),
        status_code=problem.status,
        media_type=PROBLEM_TYPE,
        headers=headers_of(problem),
    )
