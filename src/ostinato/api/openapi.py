"""The description of the API: what Litestar says of the routes, made exact, with every possible problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version as installed_version
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute

from ostinato.api import bodies
from ostinato.api.problem import PROBLEM_TYPE, Fault, Problem
from ostinato.control.document.json_schema import json_schema
from ostinato.control.plan import ChangeShape
from ostinato.control.shapes import answers, cluster, instance, task
from ostinato.errors import CODES, EXIT_BAD_INPUT, UserError

_REFERENCE = "#/components/schemas/{name}"
#: What any request may be answered with, whatever its address.
_ALWAYS = ("INVALID_VALUE", "HOST_REFUSED", "ADDRESS_NOT_FOUND", "DATABASE_UNAVAILABLE", "INTERNAL")
_WITH_BODY = ("MEDIA_TYPE", "BODY_TOO_LARGE", "INVALID_DOCUMENT")
_METHODS = ("get", "put", "post", "delete")
_SAFE_HEADERS = {
    "Cache-Control": {"schema": {"type": "string", "const": "no-store"}},
    "X-Content-Type-Options": {"schema": {"type": "string", "const": "nosniff"}},
}

OPENAPI_CONFIG = OpenAPIConfig(
    title="Ostinato",
    version=installed_version("ostinato"),
    description=(
        "Tasks, their instances, and the cluster that runs them. Errors are problems (RFC 9457) with a stable"
        " `code`. Instants are ISO 8601 with a zone, durations a number and a unit, such as `1h30m`."
    ),
    # No page of ours, so nothing is loaded from elsewhere: the description is JSON at /api/v1/openapi.json.
    render_plugins=[],
)


def describe(app: Litestar) -> bytes:
    """The whole description as JSON."""
    document = app.openapi_schema.to_schema()
    handlers = {str(handler.operation_id): handler for handler in _handlers(app)}
    for path, method, said in _described(document):
        _complete(said, handlers[said["operationId"]], path=path, has_body=method in ("put", "post"))
    document["components"]["schemas"] = _schemas()
    document["servers"] = [{"url": "/"}]
    return msgspec.json.encode(document)


def _handlers(app: Litestar) -> Iterator[HTTPRouteHandler]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            yield from route.route_handlers


def _described(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield path, method, item[method]


# ── one operation ─────────────────────────────────────────────────────────────────────────────────────


def _complete(said: dict[str, Any], handler: HTTPRouteHandler, *, path: str, has_body: bool) -> None:
    words = " ".join((handler.fn.__doc__ or "").split())
    said["summary"] = words.partition(". ")[0].rstrip(".")
    said["description"] = words
    said.pop("deprecated", None)
    for parameter in said.get("parameters", []):
        parameter["schema"] = _without_null(parameter["schema"])
        for useless in ("deprecated", "allowEmptyValue", "allowReserved"):
            parameter.pop(useless, None)
    if "requestBody" in said:
        _complete_body(said["requestBody"], handler)
    said["responses"] = dict(_responses(said["responses"], handler, path=path, has_body=has_body))


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is left out is not null."""
    options = schema.get("oneOf")
    if options is None:
        return schema
    rest = [option for option in options if option.get("type") != "null"]
    outer = {key: value for key, value in schema.items() if key != "oneOf"}
    return {**rest[0], **outer} if len(rest) == 1 else {**outer, "oneOf": rest}


def _complete_body(body: dict[str, Any], handler: HTTPRouteHandler) -> None:
    declared = handler.parsed_data_field
    body["required"] = declared is None or not declared.has_default
    if (named := handler.opt.get("body")) is not None:
        content = {"schema": {"$ref": _REFERENCE.format(name=named)}}
        types = ("application/json", *handler.opt.get("also_as", ()))
        body["content"] = {media_type: content for media_type in types}
        return
    for content in body["content"].values():
        content["schema"] = _without_null(content["schema"])


def _responses(
    said: dict[str, Any], handler: HTTPRouteHandler, *, path: str, has_body: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    good = {status: answer for status, answer in said.items() if int(status) < 400}
    (first,) = good.values()
    first["headers"] = dict(_SAFE_HEADERS)
    if handler.opt.get("etag"):
        first["headers"]["ETag"] = {
            "description": "The version of the task.",
            "schema": {"type": "string", "pattern": '^"[0-9]+"$'},
        }
    if handler.opt.get("text"):
        first["content"] = {"text/plain": {"schema": {"type": "string"}}}
    if path.endswith("/openapi.json"):
        first["content"] = {"application/json": {"schema": {"type": "object"}}}
    first["description"] = "Done." if "content" not in first else "The answer."
    yield from good.items()
    for status, meaning in handler.opt.get("also", {}).items():
        yield str(status), {**first, "description": meaning}
    codes = [*_ALWAYS, *(_WITH_BODY if has_body else ()), *handler.opt.get("codes", ())]
    yield from _problems(codes)


def _problems(codes: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(_status(code), []).append(code)
    # Bad input has many codes; the message and the field say which.
    by_status[400] = [
        code for code in CODES if CODES[code].exit_code == EXIT_BAD_INPUT and _status(code) == 400
    ]
    for status in sorted(by_status):
        meanings = "\n".join(f"* `{code}`: {CODES[code].meaning}" for code in by_status[status])
        answer: dict[str, Any] = {
            "description": meanings,
            "content": {PROBLEM_TYPE: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
        }
        if status in (429, 503):
            answer["headers"] = {"Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}}
        yield str(status), answer


def _status(code: str) -> int:
    return UserError(code, "").http_status


# ── schemas ───────────────────────────────────────────────────────────────────────────────────────────


def _schemas() -> dict[str, Any]:
    structs = [
        Problem,
        Fault,
        ChangeShape,
        *_structs(bodies.__dict__.values(), module=bodies.__name__),
        *_structs(answers.__dict__.values(), module=answers.__name__),
        *_structs(cluster.__dict__.values(), module=cluster.__name__),
        *_structs(instance.__dict__.values(), module=instance.__name__),
        *_structs(task.__dict__.values(), module=task.__name__),
    ]
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REFERENCE)
    return {**schemas, **_documents()}


def _structs(values: Iterable[object], *, module: str) -> Iterator[type[msgspec.Struct]]:
    for value in values:
        if not isinstance(value, type) or not issubclass(value, msgspec.Struct):
            continue
        if value.__module__ == module and not value.__name__.startswith("_"):
            yield value


def _documents() -> dict[str, Any]:
    """The published schema of documents, its parts as components of their own."""
    published = json_schema()
    parts: dict[str, Any] = published.pop("$defs", {})
    for useless in ("$schema", "$id"):
        published.pop(useless, None)
    return {
        "Document": _moved(published),
        **{_component(name): _moved(part) for name, part in parts.items()},
    }


def _component(name: str) -> str:
    return name[:1].upper() + name[1:]


def _moved(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _REFERENCE.format(name=_component(value.removeprefix("#/$defs/")))
            if key == "$ref" and isinstance(value, str)
            else _moved(value)
            for key, value in schema.items()
        }
    return [_moved(item) for item in schema] if isinstance(schema, list) else schema
