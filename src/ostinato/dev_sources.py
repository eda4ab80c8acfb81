"""What ``ostinato dev`` runs: documents and apps as they are now, checked whole, and what changes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import cache_from_source
from pathlib import Path
from typing import TypeVar

import msgspec

from ostinato.control.apply import validate_definition
from ostinato.control.document.read import Document
from ostinato.core.definition import PythonSpec, TaskDefinition, TaskRef, decode_definition
from ostinato.core.instants import SECOND, format_duration
from ostinato.errors import UserError
from ostinato.worker.app_probe import probe_app
from ostinato.worker.known_tasks import KnownTasks

Definitions = Mapping[TaskRef, TaskDefinition]
_Value = TypeVar("_Value")

#: Reading of documents that takes longer is given up: it may be of a network that is gone.
READ_US_MAX = 30 * SECOND


class ChangedFiles(msgspec.Struct, frozen=True):
    """What has changed together: code, documents, or both."""

    code: frozenset[Path] = frozenset()
    documents: bool = False


class DevSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where ``dev`` has its tasks from."""

    #: ``module[:attribute]`` or files, separated by commas; empty: documents alone.
    app: str
    #: Reads all documents as they are now. Raises ``InvalidDocument`` and the like.
    read_documents: Callable[[], list[Document]]
    #: What is watched, each giving its changes as they come; none: nothing is watched.
    watches: Sequence[Callable[[], AsyncIterator[ChangedFiles]]] = ()


class Loaded(msgspec.Struct, frozen=True):
    """Tasks of the documents and of the app, checked: what a worker is started for."""

    documents: list[Document]
    from_documents: dict[TaskRef, TaskDefinition]
    known: KnownTasks
    from_app: dict[TaskRef, TaskDefinition]
    #: As it was asked for.
    app: str = ""

    @property
    def definitions(self) -> dict[TaskRef, TaskDefinition]:
        return {**self.from_documents, **self.from_app}

    def place_of(self, ref: TaskRef) -> str:
        """Where the task stands in a document, as ``tasks.yaml:12:5``; empty: in none, or not known."""
        for document in self.documents:
            for definition, place in zip(document.definitions, document.places, strict=False):
                if definition.ref == ref:
                    return place
        return ""

    @property
    def python_documents(self) -> list[TaskRef]:
        """Python tasks of documents, which name their function and need no app."""
        return [
            ref
            for ref, definition in self.from_documents.items()
            if isinstance(definition.executor, PythonSpec)
        ]


async def load(sources: DevSources) -> Loaded:
    return await with_app(await read_all_documents(sources), sources.app, failed_before=frozenset())


async def read_all_documents(sources: DevSources, *, limit_us: int = READ_US_MAX) -> Loaded:
    """The documents as they are now, without an app. Raises what is wrong with them.

    That a file can be read at once is not sure, and parsing a large one takes seconds, so it is done aside.
    """
    try:
        async with asyncio.timeout(limit_us / SECOND):
            return await done_aside(lambda: _read_all(sources))
    except TimeoutError:
        raise UserError(
            "INVALID_DOCUMENT",
            f"the documents could not be read within {format_duration(limit_us)}",
            hint="a file system that does not answer, or more tasks than one document should have",
        ) from None


async def done_aside(work: Callable[[], _Value]) -> _Value:
    """What `work` gives or raises, in a thread that nobody waits for at the end of the process.

    ``asyncio.to_thread`` has a limited number of threads, and its loop cannot end before they have.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_Value] = loop.create_future()

    def give(value: _Value) -> None:
        if not result.done():
            result.set_result(value)

    def fail(error: BaseException) -> None:
        if not result.done():
            result.set_exception(error)

    def run() -> None:
        tell: Callable[[], None]
        try:
            tell = partial(give, work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            tell = partial(fail, error)
        # One that has been given up may end after the loop has.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=run, name="ostinato-aside", daemon=True).start()
    return await result


def _read_all(sources: DevSources) -> Loaded:
    documents = sources.read_documents()
    found: dict[TaskRef, TaskDefinition] = {}
    for document in documents:
        for definition in document.definitions:
            validate_definition(definition)
            if definition.ref in found:
                raise UserError(
                    "INVALID_VALUE",
                    f"task {definition.ref} is given twice",
                    subject=str(definition.ref),
                    field="name",
                )
            found[definition.ref] = definition
    return Loaded(documents, found, KnownTasks(), {}, sources.app)


async def with_app(loaded: Loaded, app: str, *, failed_before: frozenset[str]) -> Loaded:
    """`loaded` with what the app declares now. Raises ``INVALID_APP`` and what its definitions raise."""
    known = await probe_app(app) if app else KnownTasks()
    require_imported(known, failed_before=failed_before)
    return msgspec.structs.replace(loaded, known=known, from_app=declared_tasks(known, others=loaded))


class AppNotImported(UserError):
    """``INVALID_APP`` with what a terminal has room for."""

    def __init__(self, known: KnownTasks) -> None:
        super().__init__("INVALID_APP", "; ".join(known.problems), field="app")
        self.tracebacks = [text for text in known.tracebacks if text]


def failed_apps(known: KnownTasks) -> frozenset[str]:
    """Names of the apps that were not imported."""
    return frozenset(problem.partition(" could not be imported")[0] for problem in known.problems)


def require_imported(known: KnownTasks, *, failed_before: frozenset[str]) -> None:
    """One of several apps may be broken at the start, as in a worker; a change must not break another."""
    if known.problems and (not known.declarations or not failed_apps(known) <= failed_before):
        raise AppNotImported(known)


def declared_tasks(known: KnownTasks, *, others: Loaded) -> dict[TaskRef, TaskDefinition]:
    """Tasks of the app. Raises ``INVALID_NAME`` for one that a document of `others` names too."""
    found: dict[TaskRef, TaskDefinition] = {}
    for definition in map(decode_definition, known.declarations):
        validate_definition(definition)
        ref = definition.ref
        if ref in found or ref in others.from_documents:
            app = f"the app {others.app}" if others.app else "the app"
            where = "by two apps" if ref in found else f"by {app} and in a document"
            raise UserError(
                "INVALID_NAME",
                f"task {ref} is declared {where}",
                subject=str(ref),
                field="name",
                hint="give one of them another name",
                place="" if ref in found else others.place_of(ref),
            )
        found[ref] = definition
    return found


class Changes:
    """What has changed since it was last asked for, from all watches together."""

    def __init__(self, watches: Sequence[Callable[[], AsyncIterator[ChangedFiles]]]) -> None:
        self._code: frozenset[Path] = frozenset()
        self._has_documents = False
        self._failure: OSError | None = None
        self._news = asyncio.Event()
        self._watching = [asyncio.create_task(self._watch(watch)) for watch in watches]

    async def _watch(self, watch: Callable[[], AsyncIterator[ChangedFiles]]) -> None:
        try:
            async for changed in watch():
                self.put_back(changed)
                self._news.set()
        except OSError as error:
            self._failure = error
            self._news.set()

    async def wait(self) -> None:
        """Return once something has come that was not taken; never when watching has failed."""
        await self._news.wait()
        if self._failure is not None:
            await asyncio.get_running_loop().create_future()

    async def take(self) -> ChangedFiles:
        """Everything that has come, once something has. Raises ``OSError`` when watching has failed."""
        await self._news.wait()
        self._news.clear()
        if self._failure is not None:
            raise self._failure
        taken = ChangedFiles(self._code, self._has_documents)
        self._code, self._has_documents = frozenset(), False
        return taken

    def put_back(self, changed: ChangedFiles) -> None:
        """Give `changed` again together with what comes next; it is no news by itself."""
        self._code |= changed.code
        self._has_documents |= changed.documents

    async def close(self) -> None:
        """Watch no longer."""
        for watching in self._watching:
            watching.cancel()
        if self._watching:
            await asyncio.wait(self._watching)


def forget_bytecode(files: Iterable[Path]) -> None:
    """Python takes the bytecode of a file for current that has the same size and second of change."""
    for file in files:
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
