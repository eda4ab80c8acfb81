"""Whether the names in a payload fit the parameters of a Python task; every submitter asks the same."""

from __future__ import annotations

from collections.abc import Collection

from ostinato.control.names import did_you_mean
from ostinato.core.definition import ExecutorSpec, PythonSpec
from ostinato.errors import UserError


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
