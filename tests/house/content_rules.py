"""Rules of what code may contain: no leftovers, no swallowed errors, no hidden time, chance or machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from house.project import Function, Project, PythonFile, Violation, dotted_name, imported_modules

_LEFTOVER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.$}>])/(?:work|farm|root|home/\w+|tmp/\w+|Users/\w+)(?=[/\s`'\"),.:]|$)")
_BROAD = {"Exception", "BaseException"}

#: Calls that must not appear in src, with what to use instead. Clocks and chance are injected, so that a
#: test or simulation with the same seed runs the same way.
BANNED_CALLS = {
    "time.time": "clock.wall_us()",
    "time.time_ns": "clock.wall_us()",
    "time.monotonic": "clock.boot_us()",
    "time.monotonic_ns": "clock.boot_us()",
    "time.perf_counter": "clock.boot_us()",
    "time.perf_counter_ns": "clock.boot_us()",
    "time.clock_gettime": "clock.boot_us()",
    "time.clock_gettime_ns": "clock.boot_us()",
    "time.sleep": "clock.sleep_until_us(), or wait on a condition",
    "asyncio.sleep": "clock.sleep_until_us()",
    "datetime.now": "clock.wall_us()",
    "datetime.utcnow": "clock.wall_us()",
    "datetime.today": "clock.wall_us()",
    "date.today": "clock.wall_us()",
    "datetime.datetime.now": "clock.wall_us()",
    "datetime.datetime.utcnow": "clock.wall_us()",
    "datetime.date.today": "clock.wall_us()",
    "uuid.uuid1": "core.ids.new_id(now_us, rng)",
    "uuid.uuid4": "core.ids.new_id(now_us, rng)",
}
BANNED_MODULES = {
    "pickle": "JSON or MessagePack",
    "marshal": "JSON or MessagePack",
    "shelve": "JSON or MessagePack",
    "dill": "JSON or MessagePack",
    "cloudpickle": "JSON or MessagePack",
}
#: Of `random`, only the classes: its functions share one hidden state.
_RANDOM_CLASSES = {"Random", "SystemRandom"}
_SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}


def leftovers(project: Project) -> Iterator[Violation]:
    """Nothing is left for later in a comment."""
    for path, text in sorted(project.texts.items()):
        for number, line in enumerate(text.splitlines(), start=1):
            if match := _LEFTOVER.search(line):
                yield Violation(path, number, match[0], "finish it, or describe the limit in the docs")


def swallowed_errors(project: Project) -> Iterator[Violation]:
    """A broad `except` does something with the error; a narrow one that only passes says why beside it."""
    for file in project.python("src", "examples", "bench", "tools"):
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ExceptHandler):
                yield from _swallowed(file, node)
            elif isinstance(node, ast.Call) and dotted_name(node.func) in {"suppress", "contextlib.suppress"}:
                for argument in node.args:
                    if dotted_name(argument) in _BROAD:
                        yield Violation(
                            file.path, node.lineno, "suppress", "suppresses every error; name those meant"
                        )


def _swallowed(file: PythonFile, handler: ast.ExceptHandler) -> Iterator[Violation]:
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(name is None or dotted_name(name) in _BROAD for name in names)
    idle = all(isinstance(statement, ast.Pass | ast.Continue | ast.Break) for statement in handler.body)
    acts = any(
        isinstance(node, ast.Call | ast.Raise) for statement in handler.body for node in ast.walk(statement)
    )
    uses = handler.name is not None and any(
        isinstance(node, ast.Name) and node.id == handler.name
        for statement in handler.body
        for node in ast.walk(statement)
    )
    last = handler.body[-1].end_lineno or handler.lineno
    explained = any(line in file.comments for line in range(handler.lineno, last + 1))
    # A fallback value may be the answer to every error (the text of a user's class), if that is said.
    if broad and not acts and not uses and (idle or not explained):
        yield Violation(
            file.path, handler.lineno, "except", "swallows every error; raise, report or return it"
        )
    elif idle and not explained:
        yield Violation(file.path, handler.lineno, "except", "passes over an error without saying why")


def banned_calls(project: Project) -> Iterator[Violation]:
    """Time, sleeping, chance and pickled bytes come only through our own protocols."""
    for file in project.python("src"):
        for line, module in imported_modules(file):
            if module.split(".")[0] in BANNED_MODULES and module.count(".") == 0:
                yield Violation(file.path, line, module, f"is banned; use {BANNED_MODULES[module]}")
            # `from time import sleep` hides the call from the rule below.
            elif module in BANNED_CALLS and module.split(".")[0] in {"time", "asyncio", "uuid"}:
                yield Violation(file.path, line, module, f"is banned; use {BANNED_CALLS[module]}")
            elif module.startswith("random.") and module.split(".")[1] not in _RANDOM_CLASSES:
                yield Violation(file.path, line, module, "shares one hidden state; take an `rng: Random`")
        for node in ast.walk(file.tree):
            # References count too: a clock handed over as a default is still a hidden clock.
            if isinstance(node, ast.Attribute):
                yield from _banned_reference(file, node)


def _banned_reference(file: PythonFile, node: ast.Attribute) -> Iterator[Violation]:
    name = dotted_name(node)
    if name in BANNED_CALLS:
        yield Violation(file.path, node.lineno, name, f"is banned; use {BANNED_CALLS[name]}")
    elif name.startswith("random.") and name.count(".") == 1 and node.attr not in _RANDOM_CLASSES:
        yield Violation(file.path, node.lineno, name, "shares one hidden state; take an `rng: Random`")


def test_sleeps(project: Project) -> Iterator[Violation]:
    """A test waits for a condition, never for time (`asyncio.sleep(0)` is a turn of the loop, not a wait)."""
    for file in project.python("tests"):
        for name, function in file.functions:
            if function.name.startswith("test_"):
                yield from _sleeps_in(file, name, function)


def _sleeps_in(file: PythonFile, name: str, function: Function) -> Iterator[Violation]:
    for node in _own_nodes(function):
        if not isinstance(node, ast.Call) or dotted_name(node.func) not in _SLEEPS:
            continue
        turn = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if not turn:
            yield Violation(
                file.path, node.lineno, name, "sleeps; wait on a condition or use the virtual clock"
            )


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions defined inside (tasks under test may sleep)."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if not isinstance(node, Function | ast.Lambda):
            yield node
            stack.extend(ast.iter_child_nodes(node))


def machine_paths(project: Project) -> Iterator[Violation]:
    """Nothing in the tree names a path of the machine that it was written on."""
    for path, text in sorted(project.texts.items()):
        for number, line in enumerate(text.splitlines(), start=1):
            if match := _MACHINE_PATH.search(line):
                yield Violation(
                    path, number, match[0], "is a path of one machine; use a relative or a made-up one"
                )
