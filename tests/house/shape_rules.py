"""Rules of the shape of files and functions: docstring, length, parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from house.project import Function, Project, Violation

#: A file longer than this has more than one subject.
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
#: Beyond these a call cannot be read without looking up the signature.
POSITIONAL_MAX = 2

#: The interpreter calls these by position.
_PROTOCOL_METHODS = {"__exit__", "__aexit__", "__setattr__", "__set__", "__get__", "__setitem__"}


def module_docstrings(project: Project) -> Iterator[Violation]:
    """Every file says its subject in its first sentence (an empty `__init__.py` has none)."""
    for file in project.python():
        if file.text.strip() and not ast.get_docstring(file.tree):
            yield Violation(
                file.path, 1, "module", "has no module docstring; say its subject in one sentence"
            )


def file_length(project: Project) -> Iterator[Violation]:
    """No file is over 500 lines."""
    for file in project.python():
        if len(file.lines) > FILE_LINES_MAX:
            yield Violation(
                file.path,
                len(file.lines),
                "module",
                f"{len(file.lines)} lines, over {FILE_LINES_MAX}; split it by subject",
            )


def function_length(project: Project) -> Iterator[Violation]:
    """No function is over 60 lines."""
    for file in project.python():
        for name, function in file.functions:
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield Violation(
                    file.path,
                    function.lineno,
                    name,
                    f"{length} lines, over {FUNCTION_LINES_MAX}; move loops to helpers",
                )


def positional_parameters(project: Project) -> Iterator[Violation]:
    """A function takes at most two arguments by position; more are keyword-only.

    A private helper is called in its own file alone, where its parameters stand beside the call.
    """
    for file in project.python("src", "examples", "bench", "tools"):
        for name, function in file.functions:
            if function.name.startswith("_") and not function.name.startswith("__"):
                continue
            parameters = _positional(function)
            if function.name.startswith("test_"):
                continue  # of a contract suite: pytest gives fixtures by keyword
            if len(parameters) > POSITIONAL_MAX and function.name not in _PROTOCOL_METHODS:
                yield Violation(
                    file.path,
                    function.lineno,
                    name,
                    f"{len(parameters)} positional parameters; put `*` after `{parameters[1].arg}`",
                )


def boolean_parameters(project: Project) -> Iterator[Violation]:
    """No boolean is passed by position: `f(x, True)` says nothing."""
    for file in project.python("src", "examples", "bench", "tools"):
        for name, function in file.functions:
            if function.name in _PROTOCOL_METHODS:
                continue
            for parameter in _booleans(function):
                yield Violation(
                    file.path,
                    function.lineno,
                    name,
                    f"boolean `{parameter}` is positional; put `*` before it",
                )


def _positional(function: Function) -> list[ast.arg]:
    """Parameters that a caller may give by position, without the receiver."""
    parameters = [*function.args.posonlyargs, *function.args.args]
    receiver = bool(parameters) and parameters[0].arg in {"self", "cls"}
    return parameters[1:] if receiver else parameters


def _booleans(function: Function) -> Iterator[str]:
    parameters = [*function.args.posonlyargs, *function.args.args]
    defaults = dict(zip(reversed(parameters), reversed(function.args.defaults), strict=False))
    for parameter in _positional(function):
        default = defaults.get(parameter)
        annotated = parameter.annotation is not None and ast.unparse(parameter.annotation) in {
            "bool",
            "bool | None",
        }
        if annotated or (isinstance(default, ast.Constant) and isinstance(default.value, bool)):
            yield parameter.arg
