"""The parameters of a Python task: arguments → JSON object by name at submit, and back in the worker.

An annotated argument is checked against its annotation where it is given, with its name in the error, and is
rebuilt as that type in the worker. Without an annotation only plain JSON values pass. A parameter annotated
``Context`` receives the attempt's context and is no part of the payload.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ostinato.control.names import did_you_mean
from ostinato.control.parameters import check_parameters
from ostinato.core.definition import PARAMETER_TYPES, Parameter, PythonSpec
from ostinato.core.payload import (
    PAYLOAD_BYTES_MAX,
    RESULT_BYTES_MAX,
    decode_json,
    encode_payload,
    encode_result,
    not_an_object,
)
from ostinato.core.plain import from_plain, is_plain, require_plain, to_plain
from ostinato.errors import UserError
from ostinato.sdk.annotations import UNCHECKED, is_context, type_hints, usable
from ostinato.sdk.context import Context

#: By annotation: its name, where whoever has no app at hand can check it too.
_TYPE_NAMES: dict[object, str] = {kind: name for name, kind in PARAMETER_TYPES.items()}
_EXACT: frozenset[object] = frozenset({str, int, bool, float})


class Call(NamedTuple):
    """Arguments as the function takes them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Argument(NamedTuple):
    """One parameter that travels in the payload."""

    name: str
    required: bool
    #: Type to rebuild; `UNCHECKED` where there is none that msgspec understands.
    kind: object


class Signature:
    """How one function takes its payload and gives its result."""

    def __init__(self, function: Callable[..., object], *, subject: str) -> None:
        """Read `function`. Raises ``INVALID_VALUE`` if its parameters cannot travel by name."""
        self._subject = subject
        #: Names of parameters that may be given by position, the context's among them.
        self._positional: list[str] = []
        self._positional_only: list[str] = []
        self.arguments: dict[str, Argument] = {}
        self.context_names: list[str] = []
        self.accepts_any = False
        self._any_kind: object = UNCHECKED
        self._read(function)
        self._names = self.spec("-", is_async=False)

    def _read(self, function: Callable[..., object]) -> None:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise self._refusal("its parameters cannot be read", "function") from None
        hints = type_hints(function)
        self._result_kind = usable(hints.get("return", UNCHECKED))
        for parameter in parameters:
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise self._refusal(
                    f"*{parameter.name} cannot travel by name", parameter.name, hint="take a list instead"
                )
            self._read_parameter(parameter, hints.get(parameter.name, UNCHECKED))

    def _read_parameter(self, parameter: inspect.Parameter, annotation: object) -> None:
        if parameter.kind is parameter.VAR_KEYWORD:
            self.accepts_any, self._any_kind = True, usable(annotation)
            return
        if parameter.kind is not parameter.KEYWORD_ONLY:
            self._positional.append(parameter.name)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            self._positional_only.append(parameter.name)
        if is_context(annotation):
            self.context_names.append(parameter.name)
        else:
            self.arguments[parameter.name] = Argument(
                parameter.name, parameter.default is parameter.empty, usable(annotation)
            )

    def spec(self, call: str, *, is_async: bool) -> PythonSpec:
        """Executor of a definition with these parameters."""
        return PythonSpec(
            call=call,
            is_async=is_async,
            parameters=tuple(
                Parameter(
                    name=argument.name, required=argument.required, type=_TYPE_NAMES.get(argument.kind, "")
                )
                for argument in self.arguments.values()
            ),
            accepts_any=self.accepts_any,
        )

    # ── at submit ─────────────────────────────────────────────────────────────────────────────────────

    def encode_call(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], *, defaults: Collection[str] = ()
    ) -> bytes:
        """Payload of a call; names in `defaults` may be left out.

        Raises ``INVALID_PAYLOAD`` naming the argument, ``PAYLOAD_TOO_LARGE``.
        """
        given = self._bind(args, kwargs)
        self._check_names(given.keys() | set(defaults))
        plain = {name: self._plain(name, value) for name, value in given.items()}
        return encode_payload(plain, limit_bytes=PAYLOAD_BYTES_MAX)

    def encode_object(
        self, payload: Mapping[str, object], *, defaults: Collection[str] = (), partial: bool = False
    ) -> bytes:
        """Payload of arguments by name; values may be in their JSON form (a date as text) or typed.

        `partial` lets any argument be left out. Raises as `encode_call`.
        """
        if not isinstance(payload, Mapping):
            raise not_an_object(payload, field="payload")
        for name in payload:
            if not isinstance(name, str):
                raise UserError("INVALID_PAYLOAD", f"{name!r} is not an argument's name", field="payload")
        missing_allowed = self.arguments.keys() if partial else set(defaults)
        self._check_names(payload.keys() | missing_allowed)
        plain: dict[str, object] = {}
        for name, value in payload.items():
            kind = self._kind(name)
            if kind is not UNCHECKED and is_plain(value):
                from_plain(value, kind, field=f"payload.{name}")
                plain[name] = value
            else:
                plain[name] = self._plain(name, value)
        return encode_payload(plain, limit_bytes=PAYLOAD_BYTES_MAX)

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        positional = [name for name in self._positional if name in self.arguments]
        if len(args) > len(positional):
            raise UserError(
                "INVALID_PAYLOAD",
                f"{len(args)} positional arguments given, the task takes {len(positional)}",
                subject=self._subject,
                field="payload",
            )
        given = dict(zip(positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise self._bad_argument(name, "the argument is given twice")
            if name in self.context_names:
                raise self._bad_argument(name, "the context is given by the worker, not at submit")
            if name in self._positional_only:
                raise self._bad_argument(name, "the argument is positional only")
            given[name] = value
        return given

    def _check_names(self, given: Collection[str]) -> None:
        check_parameters(self._names, given, subject=self._subject)

    def _plain(self, name: str, value: object) -> object:
        kind, field = self._kind(name), f"payload.{name}"
        if kind is UNCHECKED:
            return to_plain(value, field=field, rebuild=None)
        if type(value) is kind and kind in _EXACT:
            require_plain(value, field=field)
            return value
        return to_plain(value, field=field, rebuild=lambda plain: from_plain(plain, kind, field=field))

    def _kind(self, name: str) -> object:
        argument = self.arguments.get(name)
        return self._any_kind if argument is None else argument.kind

    # ── in the worker ─────────────────────────────────────────────────────────────────────────────────

    def decode_call(self, payload: bytes, context: Context) -> Call:
        """Arguments rebuilt from a payload. Raises ``INVALID_PAYLOAD`` naming the argument."""
        value = decode_json(payload)
        if not isinstance(value, dict):
            raise UserError("INVALID_PAYLOAD", "the payload is not a JSON object", field="payload")
        self._check_names(value.keys())
        rebuilt = {
            name: plain
            if (kind := self._kind(name)) is UNCHECKED
            else from_plain(plain, kind, field=f"payload.{name}")
            for name, plain in value.items()
        }
        return self._placed(rebuilt, context)

    def call_locally(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], *, context: Context
    ) -> Call:
        """Arguments of a direct call with the context put in where the caller left it out."""
        if not self.context_names or any(isinstance(value, Context) for value in (*args, *kwargs.values())):
            return Call(args, dict(kwargs))
        placed: list[object] = []
        rest, missing = list(args), dict.fromkeys(self.context_names, context)
        for name in self._positional:
            if name in missing and (rest or name in self._positional_only):
                placed.append(missing.pop(name))
            elif not rest or name in missing:
                break
            else:
                placed.append(rest.pop(0))
        return Call((*placed, *rest), {**missing, **kwargs})

    def _placed(self, arguments: dict[str, object], context: Context) -> Call:
        for name in self.context_names:
            arguments[name] = context
        args: list[object] = []
        for name in self._positional_only:
            if name not in arguments:
                break
            args.append(arguments.pop(name))
        return Call(tuple(args), arguments)

    # ── results ───────────────────────────────────────────────────────────────────────────────────────

    def encode_result(self, value: object) -> bytes:
        """JSON of what the function returned.

        Raises ``INVALID_PAYLOAD`` naming the path below ``result``, ``PAYLOAD_TOO_LARGE``.
        """
        kind = self._result_kind
        if kind is not UNCHECKED and not is_plain(value):
            value = to_plain(
                value, field="result", rebuild=lambda plain: from_plain(plain, kind, field="result")
            )
        return encode_result(value, limit_bytes=RESULT_BYTES_MAX)

    def decode_result(self, result: bytes) -> object:
        """The returned value as its annotated type; as plain JSON where the annotation does not fit it."""
        plain = decode_json(result, field="result")
        if self._result_kind is UNCHECKED:
            return plain
        try:
            rebuilt = from_plain(plain, self._result_kind, field="result")
        except UserError:
            # The function returned something else than it says. What it returned is still the result.
            return plain
        return plain if _is_rounded(plain, rebuilt) else rebuilt

    def _bad_argument(self, name: str, message: str) -> UserError:
        hint = did_you_mean(name, self.arguments) if name not in self.arguments else ""
        return UserError(
            "INVALID_PAYLOAD", message, subject=self._subject, field=f"payload.{name}", hint=hint
        )

    def _refusal(self, message: str, field: str, *, hint: str = "") -> UserError:
        return UserError("INVALID_VALUE", message, subject=self._subject, field=field, hint=hint)


def _is_rounded(plain: object, rebuilt: object) -> bool:
    """Whether an integer became another number where the annotation says float, as 2**53 + 1 does (C161)."""
    if isinstance(plain, int):
        return isinstance(rebuilt, float) and rebuilt != plain
    if isinstance(plain, list) and isinstance(rebuilt, list | tuple):
        return any(map(_is_rounded, plain, rebuilt))
    if isinstance(plain, dict):
        parts = rebuilt.values() if isinstance(rebuilt, dict) else [getattr(rebuilt, n, None) for n in plain]
        return any(map(_is_rounded, plain.values(), parts))
    return False
