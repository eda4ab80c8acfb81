"""Whether a payload fits the parameters of a Python task by name and type; every submitter asks the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ostinato.control.names import did_you_mean
from ostinato.core.definition import PARAMETER_TYPES, ExecutorSpec, PythonSpec
from ostinato.core.plain import from_plain
from ostinato.errors import UserError, restated


def check_parameters(executor: ExecutorSpec, given: Collection[str], *, subject: str) -> None:
    """Raise ``INVALID_PAYLOAD`` naming the parameter that is missing or unexpected.

    Tasks of other kinds take any object.
    """
    if not isinstance(executor, PythonSpec):
        return
    names = [parameter.name for parameter in executor.parameters]
    if not executor.accepts_any:
        for name in given:
            if name not in names:
                known = f"parameters are {', '.join(names)}" if names else "it has no parameters"
                raise UserError(
                    "INVALID_PAYLOAD",
                    f"the task has no parameter {name!a}",
                    subject=subject,
                    field=f"payload.{name}" if name.isidentifier() else "payload",
                    hint=did_you_mean(name, names) or known,
                )
    for parameter in executor.parameters:
        if parameter.required and parameter.name not in given:
            raise UserError(
                "INVALID_PAYLOAD",
                "the argument is missing",
                subject=subject,
                field=f"payload.{parameter.name}",
            )


def check_types(executor: ExecutorSpec, given: Mapping[str, object], *, subject: str) -> None:
    """Raise ``INVALID_PAYLOAD`` naming the argument whose value is of another type than its parameter.

    Only plain types are known outside of the app; what else an annotation asks for is checked in the worker.
    """
    if not isinstance(executor, PythonSpec):
        return
    for parameter in executor.parameters:
        kind = PARAMETER_TYPES.get(parameter.type)
        if kind is None or parameter.name not in given:
            continue
        value = given[parameter.name]
        try:
            from_plain(value, kind, field=f"payload.{parameter.name}")
        except UserError as error:
            hint = _type_hint(parameter.name, value, kind)
            raise restated(error, subject=subject, hint=hint) from None


def _type_hint(name: str, value: object, kind: type[object]) -> str:
    """How a text that is the JSON of what is wanted would have been given, where it is one."""
    if not isinstance(value, str):
        return ""
    try:
        from_plain(msgspec.json.decode(value), kind, field=name)
    except (msgspec.DecodeError, UserError, RecursionError):
        return f"as a text it does not fit; on the command line, --arg {name}:=JSON is any other value"
    return f"it is given as a text; on the command line: --arg {name}:={value}"
