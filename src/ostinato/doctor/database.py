"""The check of the database, and what others need to know of it before they open it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ostinato.clock import Clock, SystemClock
from ostinato.core.url_text import shown_url
from ostinato.doctor.files import check_room, human_size
from ostinato.doctor.report import Status, prefixed, shown_error
from ostinato.errors import OstinatoError
from ostinato.settings import Settings, naming_sources, sqlite_path
from ostinato.store.administration import administrator_of
from ostinato.store.batches import DatabaseFacts
from ostinato.store.from_url import open_store_from_url
from ostinato.store.migrations import HEAD_REVISION
from ostinato.store.protocol import Store
from ostinato.store.schema_facts import SchemaFacts
from ostinato.store.server.url import is_server_url
from ostinato.store.sqlite.check import check_file

Found = Iterator[tuple[Status, str, str]]
_V = TypeVar("_V")


class DatabaseLook:
    """One look at the file of the database, for all checks that need it; nothing is made or changed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._facts: DatabaseFacts | None = None
        self._server_facts: SchemaFacts | OstinatoError | None = None

    @property
    def path(self) -> Path | None:
        """Of the file; None for a database that has none."""
        path = sqlite_path(self.settings.database)
        return None if path is None else Path(path)

    def facts(self) -> DatabaseFacts | None:
        """What is known of the file; None where there is none to look at."""
        with self._lock:
            if self._facts is None and self.path is not None:
                self._facts = check_file(str(self.path))
            return self._facts

    def server_facts(self) -> SchemaFacts | OstinatoError | None:
        """What a server's database says of its schema, or why it does not; None for any other database."""
        with self._lock:
            if self._server_facts is None and is_server_url(self.settings.database):
                try:
                    with naming_sources(self.settings):
                        administrator = administrator_of(self.settings.database, clock=SystemClock())
                        self._server_facts = asyncio.run(administrator.facts())
                except OstinatoError as error:
                    self._server_facts = error
            return self._server_facts

    def is_current(self) -> bool:
        """Whether opening the database neither makes nor migrates anything."""
        server = self.server_facts()
        if server is not None:
            return isinstance(server, SchemaFacts) and server.is_current
        facts = self.facts()
        return facts is not None and facts.schema == "current" and facts.integrity in ("ok", "unfinished")

    def has_problems(self) -> bool:
        """Whether the check of the database says what is wrong, so that no other has to."""
        if self.server_facts() is not None:
            return not self.is_current()
        facts = self.facts()
        return facts is not None and bool(facts.problems)

    def read(self, use: Callable[[Store, Clock], Awaitable[_V]]) -> _V:
        """What `use` finds in the store. Raises as opening it does; ask `is_current` first."""

        async def work() -> _V:
            clock = SystemClock()
            store = open_store_from_url(self.settings.database, clock=clock)
            try:
                await store.open()
                return await use(store, clock)
            finally:
                await store.close()

        with naming_sources(self.settings):
            return asyncio.run(work())


def check_database(look: DatabaseLook) -> Found:
    """The database: there, ours, whole, writable, of a current schema."""
    settings = look.settings
    with naming_sources(settings):
        open_store_from_url(settings.database, clock=SystemClock())
    server = look.server_facts()
    if server is not None:
        yield from _server(look, server)
        return
    facts, path = look.facts(), look.path
    if facts is None or path is None:
        yield "ok", f"{shown_url(settings.database)} lives with the process that opens it", ""
        return
    field = settings.source("database")
    # As whoever opens the file says it: each once, and some name the file by themselves.
    problems = list(dict.fromkeys(problem.removeprefix(f"{path}: ") for problem in facts.problems))
    if problems:
        hint = "restore a backup, or name another file" if facts.exists else "name another file"
        yield "fail", prefixed(field, prefixed(str(path), "; ".join(problems))), hint
    folder = path.absolute().parent
    if not facts.exists:
        if not facts.problems and not os.access(folder, os.W_OK | os.X_OK):
            yield "fail", f"{field}: {folder} is not writable", "give it to the scheduler's user"
        elif not facts.problems:
            yield "warn", f"there is no database {path} yet", "ostinato dev or scheduler makes it"
    elif not facts.problems:
        yield from _content(facts, path, field=field)
        yield from _opens(look)
    if folder.is_dir():
        yield from check_room(folder, what="the database")


def _server(look: DatabaseLook, facts: SchemaFacts | OstinatoError) -> Found:
    """A server's database: it answers, and has the schema of this version."""
    if isinstance(facts, OstinatoError):
        yield "fail", shown_error(facts), facts.hint
        return
    field = look.settings.source("database")
    if facts.is_newer:
        what = f"{field}: {facts.database} has schema {facts.revision}, which this version does not know"
        yield "fail", what, "use the newer version of Ostinato that made it"
    elif facts.change is not None:
        what = f"{facts.database} is in the middle of a schema {facts.change}"
        hint = f"wait for its end, or where it has broken off, run {facts.change.command}"
        yield "fail", f"{field}: {what}", hint
    elif facts.pending:
        what = f"{facts.database} has schema {facts.revision or 'none'}, and {HEAD_REVISION} is needed"
        yield "fail", f"{field}: {what}", "ostinato db upgrade"
    else:
        partitions = f"{facts.partitions} partitions"
        yield "ok", f"{facts.database} answers and has the current schema, {facts.revision}, {partitions}", ""
        yield from _opens(look)


def _opens(look: DatabaseLook) -> Found:
    """What only opening it shows, told here, as the other checks leave it to this one."""
    if not look.is_current():
        return
    try:
        look.read(lambda store, _clock: store.nodes())
    except OstinatoError as error:
        yield "fail", shown_error(error), error.hint


def _content(facts: DatabaseFacts, path: Path, *, field: str) -> Found:
    if facts.schema == "current":
        yield "ok", f"{path} has the current schema, {facts.revision}", ""
    elif facts.schema == "older":
        what = f"{path} has schema {facts.revision}, which is older than {HEAD_REVISION}"
        yield "warn", what, "the next scheduler migrates it"
    elif facts.schema == "newer":
        what = f"{field}: {path} has schema {facts.revision}, which this version does not know"
        yield "fail", what, "use the newer version of Ostinato that made it"
    else:
        yield "warn", f"{path} is empty", "ostinato dev or scheduler fills it"
    if facts.integrity == "ok":
        yield "ok", "its pages are whole", ""
    elif facts.integrity == "unfinished":
        yield "ok", "its pages are whole as far as there was time to look", ""
    if not facts.is_writable:
        yield "fail", f"{field}: {path} or its folder is read-only", "give both to the scheduler's user"
        return
    rows = ", ".join(f"{count} {name}" for name, count in facts.row_counts.items() if name in _TOLD_TABLES)
    shown = f"{human_size(facts.size_bytes)} with its log" + (f": rows of {rows}" if rows else "")
    yield "ok", f"{path} is writable, {shown}", ""


#: Tables of which the number of rows says something.
_TOLD_TABLES = ("task", "instance", "history")
