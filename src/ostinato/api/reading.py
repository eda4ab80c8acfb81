"""Reading of what a request says: its JSON body strictly as its struct, parameters known and given once."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, cast, get_args
from urllib.parse import parse_qsl

import msgspec
from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, ParameterKwarg

from ostinato.api.asgi import Message
from ostinato.api.bodies import FilterBody
from ostinato.api.guard import is_yaml
from ostinato.control.names import did_you_mean
from ostinato.core.payload import TWICE, almost_json, repeated_member
from ostinato.core.plain import nested_too_deep
from ostinato.errors import OstinatoError, UserError

_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(.+)`, got `(.+)`", re.DOTALL)
_IN_PAYLOAD = re.compile(r"(?:submissions\[\d+\]\.)?payload\.")
_WHOLE_NUMBER = re.compile(r"-?[0-9]+", re.ASCII)
_PARAMETERS_COUNT_MAX = 1_000

#: Types of JSON in the words of our messages; msgspec has those of Python.
_TYPE_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
#: What people from elsewhere write, by what is meant.
_OTHER_NAMES = {
    "since": "created_from",
    "from": "created_from",
    "after": "created_from",
    "until": "created_before",
    "to": "created_before",
    "before": "created_before",
    "status": "state",
    "states": "state",
    "error": "code",
    "cron": "expression",
    "schedule": "expression",
    "tz": "timezone",
    "zone": "timezone",
    "n": "count",
    "name": "task",
    "q": "search",
    "query": "search",
    "page": "cursor",
    "per_page": "limit",
    "size": "limit",
    "dryrun": "dry_run",
    "args": "payload",
    "arguments": "payload",
    "params": "payload",
    "data": "payload",
    "input": "payload",
    "idempotency_key": "key",
    "run_at": "at",
    "eta": "at",
    "countdown": "delay",
}

_FILTER_MEMBERS = FilterBody.__struct_encode_fields__


class StrictRequest(Request[Any, Any, Any]):
    """A request whose body is read by `read_body`: Litestar would take the text ``"3"`` for a number."""

    @property
    def holds_yaml(self) -> bool:
        return is_yaml(cast("Message", self.scope))

    async def json(self) -> Any:
        """The body as the type that the handler declares for ``data``. Raises as `read_body`.

        Of YAML, which the guard lets through where the handler reads it itself, an empty object.
        """
        if self.holds_yaml:
            return {}
        declared = self.route_handler.parsed_data_field
        return read_body(await self.body(), Any if declared is None else _without_none(declared.annotation))


def read_body(body: bytes, kind: Any) -> Any:
    """`body` as a value of `kind`; its texts, numbers and keys exactly as declared.

    Raises ``INVALID_DOCUMENT`` if it is not JSON of the form, ``INVALID_VALUE`` for a member that is unknown,
    missing, of a wrong type or there twice, ``INVALID_PAYLOAD`` where that is within ``payload``; each names
    the path.
    """
    try:
        value = _decoder(kind).decode(body)
        repeated = repeated_member(body)
    except RecursionError:
        raise _too_deep(kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _read_wrong_body(body, kind)
    if repeated:
        code = "INVALID_PAYLOAD" if _IN_PAYLOAD.match(repeated) else "INVALID_VALUE"
        raise UserError(code, TWICE, field=repeated)
    return value


def _read_wrong_body(body: bytes, kind: Any) -> Any:
    """As `read_body`, for a body in which something has been found that is not as declared."""
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        # Where is not known: the fault that was found first may be in front of it.
        raise _too_deep(None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # With NaN or a lone surrogate in its place: the rule of the member that holds it refuses it by name.
        value = almost_json(body)
        if value is None:
            raise UserError(
                "INVALID_DOCUMENT", f"the body is not JSON: {error}", hint="send one JSON object in UTF-8"
            ) from None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), members=_members(kind), code="INVALID_VALUE") from None


def _too_deep(kind: Any) -> UserError:
    if "payload" in _members(kind):
        return nested_too_deep("payload")
    if "submissions" in _members(kind):
        return nested_too_deep("submissions[].payload")
    return UserError("INVALID_DOCUMENT", "the body is nested too deep")


def refused_value(message: str) -> UserError:
    """The error that a message of msgspec about a parameter means."""
    return _refusal(message, members=(), code="INVALID_VALUE")


class Parameters(msgspec.Struct, frozen=True):
    """Names of what an operation takes beside its path and body."""

    single: frozenset[str]
    #: Of the query, may be given several times.
    repeatable: frozenset[str]
    headers: frozenset[str]
    #: Of the query, whole numbers.
    numbers: frozenset[str]


def parameters_of(handler: HTTPRouteHandler, *, path_parameters: Collection[str]) -> Parameters:
    """What the function of a route, and the functions that its arguments come from, ask for."""
    single: set[str] = set()
    repeatable: set[str] = set()
    headers: set[str] = set()
    numbers: set[str] = set()
    dependencies = handler.resolve_dependencies()
    fields = dict(handler.parsed_fn_signature.parameters)
    for name in fields.keys() & dependencies.keys():
        del fields[name]
        fields.update(dependencies[name].parsed_fn_signature.parameters)
    for name, field in fields.items():
        said = field.kwarg_definition
        if name in path_parameters or not isinstance(said, ParameterKwarg):
            continue
        if isinstance(said, HeaderParameter):
            headers.add(said.name or name)
        elif field.is_non_string_sequence or any(inner.is_non_string_sequence for inner in field.inner_types):
            repeatable.add(said.name or name)
        else:
            single.add(said.name or name)
            if field.annotation is int or any(inner.annotation is int for inner in field.inner_types):
                numbers.add(said.name or name)
    return Parameters(
        frozenset(single), frozenset(repeatable), frozenset(headers), numbers=frozenset(numbers)
    )


def check_query(query: bytes, parameters: Parameters) -> None:
    """Raise ``INVALID_VALUE`` for a parameter that is not known, comes twice where only one can count, or is
    written as another number than it would be taken for.
    """
    single, repeatable = parameters.single, parameters.repeatable
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_PARAMETERS_COUNT_MAX,
        )
    except UnicodeDecodeError:
        raise UserError("INVALID_VALUE", "the query is not UTF-8", field="query") from None
    except ValueError:
        raise UserError(
            "INVALID_VALUE", f"more than {_PARAMETERS_COUNT_MAX} parameters", field="query"
        ) from None
    seen: set[str] = set()
    for name, value in pairs:
        if name in repeatable:
            continue
        if name not in single:
            known = sorted({*single, *repeatable})
            listed = f"parameters are {', '.join(known)}" if known else "this address has no parameters"
            raise UserError(
                "INVALID_VALUE",
                f"there is no parameter {name[:100]!a}",
                field=ascii(name[:100])[1:-1] or "query",
                hint=_meant(name[:100], known) or listed,
            )
        if name in seen:
            raise UserError("INVALID_VALUE", "is given more than once", field=name)
        if name in parameters.numbers and _WHOLE_NUMBER.fullmatch(value) is None:
            raise UserError("INVALID_VALUE", "is not a whole number", field=name)
        seen.add(name)


def _without_none(kind: Any) -> Any:
    """A body that may be left out is not null."""
    options = [option for option in get_args(kind) if option is not type(None)]
    return options[0] if len(options) == 1 else kind


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _members(kind: Any) -> tuple[str, ...]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind.__struct_encode_fields__
    return ()


def _refusal(message: str, *, members: Collection[str], code: str) -> UserError:
    """A message such as ``Expected `int`, got `str` - at `$.items[...].priority` `` as our error."""
    found = _AT.fullmatch(message)
    text, path = (found[1], found[2]) if found is not None else (message, "")
    path = path.replace("[...]", "[]")
    hint = ""
    if (unknown := _UNKNOWN_FIELD.fullmatch(text)) is not None:
        name = unknown[1][:100]
        hint = _meant(name, members if not path else _FILTER_MEMBERS if path == "filter" else ())
        if not hint and not path and "payload" in members:
            hint = "arguments of the task go into payload"
        text, path = f"there is no field {name!a}", _joined(path, ascii(name)[1:-1])
    elif (missing := _MISSING_FIELD.fullmatch(text)) is not None:
        text, path = "is missing", _joined(path, missing[1])
    elif not path:
        code = "INVALID_DOCUMENT"
        text = f"the body is wrong: {_in_json_words(text)}"
    else:
        text = "is not a whole number" if text.startswith("Expected `int") else _in_json_words(text)
    if path.split("[")[0].split(".")[0] == "payload":
        code = "INVALID_PAYLOAD"
    return UserError(code, text, field=path, hint=hint)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _in_json_words(text: str) -> str:
    """``Expected `str | null`, got `int` `` as *expected a text or null, not a number*."""
    found = _WRONG_TYPE.fullmatch(text)
    if found is None:
        return text[:1].lower() + text[1:]
    wanted = " or ".join(_TYPE_WORDS.get(name, name) for name in found[1].split(" | "))
    got = "a number" if found[2] in ("int", "float") else _TYPE_WORDS.get(found[2], found[2])
    return f"expected {wanted}, not {got}"


def _meant(name: str, known: Collection[str]) -> str:
    """A hint with the known name that is meant, or empty."""
    other = _OTHER_NAMES.get(name.lower().replace("-", "_"))
    return f"did you mean {other}?" if other in known else did_you_mean(name, known)


def refused_anyway(error: BaseException) -> OstinatoError | None:
    """The error of ours that one of Litestar's stands for, None for what is a bug."""
    cause = error.__cause__
    if isinstance(cause, OstinatoError):
        return cause
    if isinstance(cause, msgspec.ValidationError):
        message = str(cause)
        if "required field `data`" in message:
            return UserError("INVALID_DOCUMENT", "a body is needed", hint="send a JSON object")
        return refused_value(message)
    return None
