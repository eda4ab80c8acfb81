"""What ``ostinato dev`` watches, where its documents come from, and what it says when either has changed."""

from __future__ import annotations

import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import msgspec
import typer
from watchfiles import Change, awatch

from ostinato.cli.commands.apply_files import SUFFIXES, find_files, read_regular_file
from ostinato.cli.output import note, print_json, safe, safe_lines, say
from ostinato.clock import Clock, SystemClock
from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.read import Document
from ostinato.control.document.yaml_text import read_yaml
from ostinato.core.definition import Parameter, TaskDefinition, TaskRef
from ostinato.core.instants import MILLISECOND, format_duration
from ostinato.core.retry.policy import policy_to_dict
from ostinato.core.schedule.trigger import describe_trigger
from ostinato.core.url_text import without_passwords
from ostinato.dev_sources import ChangedFiles, done_aside
from ostinato.errors import OstinatoError

#: Changes that follow each other within the step are one, up to the limit: an editor, a checkout.
_STEP_MS = 100
_DEBOUNCE_MS = 1_500
#: So often it is looked at whether the folders are still those that are watched.
_LOOK_MS = 500
#: Folders that tools fill, at any depth.
_IGNORED_FOLDERS = frozenset(
    {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist", "target"}
)
#: A folder of a volume that is replaced as a whole by setting this link anew (Kubernetes).
_SWAPPED_LINK = "..data"
_VALUE_LENGTH_MAX = 60

Changes = AsyncIterator[ChangedFiles]


def is_document(name: str) -> bool:
    """Whether an argument of ``dev`` names a document or a folder of them, rather than an app.

    A folder that is a package is the app of that name, unless it is written as a path.
    """
    is_package = name.isidentifier() and Path(name, "__init__.py").is_file()
    return name.lower().endswith(SUFFIXES) or (Path(name).is_dir() and not is_package)


def document_reader(names: Sequence[str]) -> Callable[[], list[Document]]:
    """Reads all documents in the files and folders `names` as they are when it is called."""

    def read() -> list[Document]:
        return [
            document
            for file in find_files(names)
            for document in read_yaml(read_regular_file(file), name=file)
        ]

    return read


# ── watching ──────────────────────────────────────────────────────────────────────────────────────────


def watches(
    *, app: str, documents: Sequence[str], folders: Sequence[str], data_dir: Path
) -> list[Callable[[], Changes]]:
    """What is watched for `app`, `documents` and the further `folders` of code."""
    code = {folder for name in filter(None, app.split(",")) for folder in _code_folders(name)}
    # Functions of documents and modules beside the app are found from here too.
    code |= {Path(folder).resolve() for folder in folders}
    found: list[Callable[[], Changes]] = []
    if code:
        found.append(lambda: _watch_code(_outermost(code), data_dir=data_dir.resolve()))
    # Not where a link leads now: it may be set anew.
    trees = {Path(name).absolute() for name in documents if Path(name).is_dir()}
    if trees:
        found.append(lambda: _watch_documents(_outermost(trees), names=None))
    files = [Path(name).absolute() for name in documents if not Path(name).is_dir()]
    # Also where a link leads: its folder is where the text changes.
    places = {place for file in files for place in (file, file.resolve())}
    if places:
        names = frozenset(place.name for place in places) | {_SWAPPED_LINK}
        found.append(lambda: _watch_documents({place.parent for place in places}, names=names))
    return found


def _code_folders(name: str) -> Iterator[Path]:
    """Folders of the app's file, or of its outermost package."""
    place = name.partition(":")[0]
    if place.endswith(".py"):
        yield Path(place).absolute().parent
        yield Path(place).resolve().parent
        return
    package = place.partition(".")[0]
    spec = PathFinder.find_spec(package, [str(Path.cwd())]) or find_spec(package)
    if spec is None:
        return
    if spec.submodule_search_locations:
        yield from (Path(folder).resolve() for folder in spec.submodule_search_locations)
    elif spec.origin is not None:
        yield Path(spec.origin).resolve().parent


def _outermost(folders: set[Path]) -> list[Path]:
    """Without those that are inside another, as each is watched with all that is in it."""
    return [folder for folder in sorted(folders) if not any(other in folders for other in folder.parents)]


async def _watch_code(folders: Sequence[Path], *, data_dir: Path) -> Changes:
    def is_code(_change: Change, path: str) -> bool:
        return is_code_file(Path(path), folders=folders, data_dir=data_dir)

    async for paths in _changed_paths(folders, watch_filter=is_code, is_deep=True):
        yield ChangedFiles(code=paths)


def is_code_file(path: Path, *, folders: Sequence[Path], data_dir: Path) -> bool:
    """Whether a change of the file means other code: no editor's or tool's file, nothing that we write."""
    if path.suffix != ".py" or path.name.startswith((".", "flycheck_")) or path.is_relative_to(data_dir):
        return False
    inside = next((path.relative_to(folder) for folder in folders if path.is_relative_to(folder)), path)
    return not any(part in _IGNORED_FOLDERS or part.startswith(".") for part in inside.parts[:-1])


async def _watch_documents(folders: Sequence[Path] | set[Path], *, names: frozenset[str] | None) -> Changes:
    """Documents of these names in the folders themselves, or all those at any depth."""

    def matches(_change: Change, path: str) -> bool:
        name = Path(path).name
        if names is not None:
            return name in names
        return name == _SWAPPED_LINK or (name.lower().endswith(SUFFIXES) and not name.startswith("."))

    async for _ in _changed_paths(sorted(folders), watch_filter=matches, is_deep=names is None):
        yield ChangedFiles(documents=True)


async def _changed_paths(
    folders: Sequence[Path], *, watch_filter: Callable[[Change, str], bool], is_deep: bool
) -> AsyncIterator[frozenset[Path]]:
    """What has changed in the folders; a folder itself where another is in its place, or none, or one again.

    The kernel watches a folder and not its name: of one that is removed and made anew, as another branch
    is checked out, it would tell nothing any more.
    """
    clock = SystemClock()
    swapped: frozenset[Path] = frozenset()
    seen = await done_aside(lambda: _identities(folders))
    while True:
        there = [folder for folder in folders if folder in seen]
        if not there and swapped:
            yield swapped
            swapped = frozenset()
        async for found in _looks(there, clock=clock, watch_filter=watch_filter, is_deep=is_deep):
            # Told once the new ones are watched, so that nothing comes between reading and watching.
            if paths := swapped | found:
                yield paths
            swapped = frozenset()
            now = await done_aside(lambda: _identities(folders))
            if now != seen:
                swapped = frozenset(folder for folder in folders if now.get(folder) != seen.get(folder))
                seen = now
                break


async def _looks(
    folders: Sequence[Path], *, clock: Clock, watch_filter: Callable[[Change, str], bool], is_deep: bool
) -> AsyncIterator[frozenset[Path]]:
    """What has changed in the folders, as it comes; nothing at least once in `_LOOK_MS`."""
    try:
        async with aclosing(
            awatch(
                *folders,
                watch_filter=watch_filter,
                step=_STEP_MS,
                debounce=_DEBOUNCE_MS,
                recursive=is_deep,
                rust_timeout=_LOOK_MS,
                yield_on_timeout=True,
            )
            if folders
            else _nothing(clock)
        ) as changes:
            async for found in changes:
                yield frozenset(Path(path) for _, path in found)
    except FileNotFoundError:
        # Gone again since it was looked at.
        yield frozenset()


async def _nothing(clock: Clock) -> AsyncGenerator[set[tuple[Change, str]], None]:
    while True:
        await clock.sleep_until_us(clock.boot_us() + _LOOK_MS * MILLISECOND)
        yield set()


def _identities(folders: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    """What the kernel means by each of the folders that are there."""
    found = {}
    for folder in folders:
        try:
            status = folder.stat()
        except OSError:
            # Not there for now; that this changes is what is looked for.
            continue
        if stat.S_ISDIR(status.st_mode):
            found[folder] = (status.st_dev, status.st_ino)
    return found


# ── telling ───────────────────────────────────────────────────────────────────────────────────────────


class Teller:
    """Says on stdout what a reload has changed, and on stderr why there was none."""

    def __init__(self, *, in_json: bool, namespace: str) -> None:
        self._in_json = in_json
        self._namespace = namespace

    def reloaded(
        self,
        before: Mapping[TaskRef, TaskDefinition],
        after: Mapping[TaskRef, TaskDefinition],
        *,
        code: bool,
    ) -> None:
        added = sorted(after.keys() - before.keys())
        removed = sorted(before.keys() - after.keys())
        both = sorted(ref for ref in before.keys() & after if before[ref] != after[ref])
        differences = {ref: changed_fields(before[ref], after[ref]) for ref in both}
        changed = {ref: fields for ref, fields in differences.items() if fields}
        if self._in_json:
            print_json(
                {
                    "reloaded": {
                        "added": [str(ref) for ref in added],
                        "changed": {str(ref): fields for ref, fields in changed.items()},
                        "removed": [str(ref) for ref in removed],
                    }
                }
            )
            return
        if not (added or removed or changed):
            what = "reloaded: code only" if code else "reloaded: nothing has changed"
            say(f"{what}, every task is declared as before")
            return
        lines = [f"reloaded: {len(added)} added, {len(changed)} changed, {len(removed)} no longer declared"]
        lines += [f"  + {self._name(ref)}" for ref in added]
        for ref, fields in changed.items():
            lines += [
                f"  ~ {self._name(ref)}: {safe(field)} {safe(old)} → {safe(new)}"
                for field, (old, new) in fields.items()
            ]
        for ref in removed:
            option = "" if ref.namespace == self._namespace else f" --namespace {safe(ref.namespace)}"
            end = f"ostinato task delete {safe(ref.name)}{option} ends it"
            lines.append(f"  - {self._name(ref)} stays as it is; {end}")
        say("\n".join(lines))

    def importing(self, app: str, *, limit_us: int) -> None:
        note(f"{app} is still being imported; that is given up after {format_duration(limit_us)}")

    def refused(self, error: OstinatoError, *, tracebacks: Sequence[str]) -> None:
        errors = error.errors if isinstance(error, InvalidDocument) else (error,)
        if self._in_json:
            print_json({"refused": [{"code": each.code, "message": str(each)} for each in errors]})
        lines = [f"{each.code}: {each}" for each in errors]
        lines += tracebacks
        shown = "\n".join(f"  {line}" for text in lines for line in text.split("\n"))
        typer.echo(f"not reloaded, what ran before goes on:\n{safe_lines(shown)}", err=True)

    def unwatched(self, reason: str) -> None:
        note(f"changes are not noticed any more: {reason}; --no-reload says that this is meant")

    def _name(self, ref: TaskRef) -> str:
        return safe(ref.name if ref.namespace == self._namespace else ref)


def changed_fields(before: TaskDefinition, after: TaskDefinition) -> dict[str, tuple[str, str]]:
    """By field, as ``retry.max_retry``: its value before and after, in words."""
    old, new = dict(_facts(before)), dict(_facts(after))
    return {
        name: (_short(old.get(name, "none")), _short(new.get(name, "none")))
        for name in sorted(old.keys() | new)
        if old.get(name) != new.get(name)
    }


def _facts(definition: TaskDefinition) -> Iterator[tuple[str, str]]:
    kind = str(definition.executor.__struct_config__.tag)
    for field in definition.executor.__struct_fields__:
        yield from _words(f"{kind}.{field}", getattr(definition.executor, field))
    yield from _words("retry", policy_to_dict(definition.retry))
    yield "triggers", "; ".join(map(describe_trigger, definition.triggers)) or "none"
    yield "payload", bytes(definition.payload).decode()
    for field in definition.__struct_fields__:
        if field not in ("namespace", "name", "executor", "retry", "triggers", "payload"):
            yield from _words(field, getattr(definition, field))


def _words(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _words(f"{name}.{key}", item)
    elif value is None or value == ():
        yield name.removesuffix("_us"), "none"
    elif name.endswith("_us") and isinstance(value, int):
        yield name.removesuffix("_us"), format_duration(value)
    elif isinstance(value, tuple) and isinstance(value[0], Parameter):
        yield name, ", ".join(item.name if item.required else f"{item.name}?" for item in value)
    elif isinstance(value, str):
        yield name, without_passwords(value) or "none"
    else:
        yield name, msgspec.json.encode(value).decode()


def _short(text: str) -> str:
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}…"
