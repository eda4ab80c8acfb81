"""Imports what users wrote, never in the supervisor: says what failed and why, and runs the rest."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ostinato.core.definition import TaskRef, encode_definition
from ostinato.core.failure.classify import failure_from_exception
from ostinato.errors import OstinatoError, UserError
from ostinato.sdk.app import App
from ostinato.sdk.context import Context
from ostinato.sdk.signature import Call
from ostinato.sdk.task import Task, read_function
from ostinato.worker.known_tasks import KnownTasks

_IMPORT_FILES = f"{Path(importlib.__file__).parent}{os.sep}"
_OWN_FILES = f"{Path(__file__).parents[1]}{os.sep}"
#: Where code is installed, which is rarely what has to be corrected.
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib"))
#: Of a traceback: where it happened, and what.
_TRACEBACK_LINES_MAX = 20


class Callee(NamedTuple):
    """A function that a task calls, how it takes its payload and how it gives its result."""

    function: Callable[..., object]
    bind_payload: Callable[[bytes, Context], Call]
    encode_result: Callable[[object], bytes]


class TaskModules:
    """Tasks of all apps named in `apps`, and functions that definitions name without an app."""

    def __init__(self, apps: str) -> None:
        self._apps: list[App] = []
        self._callees: dict[tuple[TaskRef, str], Callee] = {}
        self.known = KnownTasks()
        for name in filter(None, (part.strip() for part in apps.split(","))):
            try:
                app = load_app(name)
                self._add(app)
            except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
                self.known.problems.append(_problem(name, error))
                self.known.tracebacks.append(_users_traceback(error))

    def _add(self, app: App) -> None:
        definitions = app.definitions()
        self._apps.append(app)
        self.known.tasks.extend(app.registered)
        self.known.declarations.extend(encode_definition(definition) for definition in definitions)

    def callee(self, ref: TaskRef, call: str) -> Callee:
        """The function of a task. Raises ``TASK_NOT_FOUND``, or whatever the import of `call` raises."""
        found = self._callees.get((ref, call))
        if found is None:
            found = self._find(ref, call)
            self._callees[(ref, call)] = found
        return found

    def _find(self, ref: TaskRef, call: str) -> Callee:
        for app in self._apps:
            task = app.registered.get(ref)
            if task is not None:
                return _callee_of_task(task)
        module_name, _, attribute = call.partition(":")
        if not module_name or not attribute:
            problems = "".join(f"; {problem}" for problem in self.known.problems)
            raise UserError("TASK_NOT_FOUND", f"no app of this worker has task {ref}{problems}")
        found: object = importlib.import_module(module_name)
        for name in attribute.split("."):
            found = getattr(found, name)
        if isinstance(found, Task):
            return _callee_of_task(found)
        if not callable(found):
            raise UserError("TASK_NOT_FOUND", f"{call} is not a function", subject=str(ref))
        signature = read_function(found, subject=str(ref))
        return Callee(found, signature.decode_call, signature.encode_result)


def _callee_of_task(task: Task[..., object]) -> Callee:
    return Callee(task.function, task.bind_payload, task.encode_result)


def load_app(name: str) -> App:
    """App of ``module[:attr]`` or ``path.py[:attr]``. Raises ``INVALID_APP``, or what the import raises."""
    place, _, attribute = name.partition(":")
    module = _import_path(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    if not attribute:
        return _only_app(module, name)
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UserError("INVALID_APP", f"{place} has no {attribute!r}", field="app") from None
    if not isinstance(found, App):
        raise UserError("INVALID_APP", f"{name} is not an App, but a {type(found).__name__}", field="app")
    return found


def _only_app(module: ModuleType, name: str) -> App:
    found = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(found) != 1:
        count = "no App" if not found else f"{len(found)} Apps"
        raise UserError("INVALID_APP", f"{name} has {count}", field="app", hint=f"write {name}:NAME")
    return next(iter(found.values()))


def _import_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError("INVALID_APP", f"there is no file {path}", field="app")
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise UserError("INVALID_APP", f"{path} cannot be imported", field="app")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as every import does, so that modules that import it meet the same one.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _users_traceback(error: BaseException) -> str:
    """The traceback with the frames of the user's own files alone; the last lines.

    Empty where nothing of the user's code is in it, and for what we refused: the problem says where.
    """
    if isinstance(error, OstinatoError):
        return ""
    at = error.__traceback__
    while at is not None and _is_foreign(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    if at is None and not isinstance(error, SyntaxError):
        return ""
    told = traceback.TracebackException(type(error), error, at)
    _keep_users_frames(told)
    lines = "".join(told.format()).splitlines()
    return "\n".join(lines[-_TRACEBACK_LINES_MAX:])


def _keep_users_frames(told: traceback.TracebackException) -> None:
    """Leave out what the user cannot correct, unless nothing else is there; in all causes too."""
    kept = [
        frame
        for frame in told.stack
        if not _is_foreign(frame.filename) and not frame.filename.startswith(_LIBRARIES)
    ]
    if kept:
        told.stack = traceback.StackSummary.from_list(kept)
    for other in (told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())):
        if other is not None:
            _keep_users_frames(other)


def _is_foreign(file: str) -> bool:
    return file.startswith(("<", _OWN_FILES, _IMPORT_FILES))


def _problem(name: str, error: BaseException) -> str:
    """What failed and why, with the place in the user's code, also where ours refused what stands there."""
    said = _told(error) if isinstance(error, OstinatoError) else failure_from_exception(error).message
    at = error.__traceback__
    place = ""
    is_users = False
    while at is not None:
        file, line = at.tb_frame.f_code.co_filename, at.tb_lineno
        # A library's frame only where nothing before it is the user's own.
        if not _is_foreign(file) and not (is_users and file.startswith(_LIBRARIES)):
            place = f" ({file}, line {line})"
            is_users = not file.startswith(_LIBRARIES)
        at = at.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}, line {error.lineno})"
    return f"{name} could not be imported: {said}{place}"


def _told(error: OstinatoError) -> str:
    """What ours refused; the app is named already."""
    words = str(error)
    return words.removeprefix("app: ") if error.field == "app" else words
