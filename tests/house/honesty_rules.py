"""Rules of honesty: silenced checks give reasons, codes exist, files are used, tests assert."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator

from house.project import Function, Project, PythonFile, Violation, dotted_name, imported_modules

#: Words that a reason needs at least: one is a label.
_REASON_WORDS_MIN = 2
_SILENCED = re.compile(
    r"#\s*(?P<what>noqa|type:\s*ignore|pragma:\s*no\s*cover|fmt:\s*(?:off|skip)|mypy:\s*ignore)"
    r"(?P<codes>\s*:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*|\[[^\]]*\])?(?P<rest>.*)"
)
_ERRORS_PATH = "src/ostinato/errors.py"
_ERROR_CLASSES = {"OstinatoError", "UserError", "ConflictError", "UnavailableError", "InternalError"}
_CODE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
_ASSERTING = ("assert", "raises", "warns", "check", "expect", "verify", "fail", "refuse")
#: Suites that the tests of each adapter inherit.
_CONTRACTS = "src/ostinato/testing/contracts/"
#: Run by a tool rather than imported.
_RUN_BY_TOOLS = re.compile(r"(?:^|/)(?:__init__|__main__|env)\.py$|/migrations/versions/")


def silenced_checks(project: Project) -> Iterator[Violation]:
    """A silenced check names its code, and the reason stands beside it."""
    for file in project.python():
        for line, comment in sorted(file.comments.items()):
            match = _SILENCED.search(comment)
            if not match:
                continue
            what = re.sub(r"\s+", "", match["what"])
            reason = match["rest"].lstrip(" #-:—")
            if what in {"noqa", "type:ignore"} and not match["codes"]:
                yield Violation(file.path, line, what, "silences everything; name the code")
            elif len(reason.split()) < _REASON_WORDS_MIN:
                yield Violation(file.path, line, what, "gives no reason beside it")
    yield from _silenced_in_configuration(project.texts.get("pyproject.toml", ""))


def _silenced_in_configuration(text: str) -> Iterator[Violation]:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r'\s*"[A-Z]+\d+",?\s*(#.*)?$', line) and "#" not in line:
            yield Violation(
                "pyproject.toml", number, line.strip(' ",'), "is ignored without a reason beside it"
            )


def error_codes(project: Project) -> Iterator[Violation]:
    """Codes in use and codes in the catalogue are the same set."""
    catalogue = _catalogue(project)
    used: set[str] = set()
    for file in project.python("src"):
        if file.path == _ERRORS_PATH:
            used |= _codes_in_functions(file)
            continue
        used |= {
            node.value
            for node in ast.walk(file.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        for node in ast.walk(file.tree):
            if (code := _raised_code(node)) and code not in catalogue:
                yield Violation(file.path, node.lineno, code, "is missing from ostinato.errors.CODES")
    for code, line in catalogue.items():
        if code not in used:
            yield Violation(_ERRORS_PATH, line, code, "is in the catalogue but nothing raises it")


def _catalogue(project: Project) -> dict[str, int]:
    for file in project.python("src"):
        if file.path != _ERRORS_PATH:
            continue
        for node in file.tree.body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == "CODES" and isinstance(node.value, ast.Dict):
                return {key.value: key.lineno for key in node.value.keys if isinstance(key, ast.Constant)}
    return {}


def _codes_in_functions(file: PythonFile) -> set[str]:
    """Codes that the catalogue's own file raises."""
    return {
        node.value
        for _, function in file.functions
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value)
    }


def _raised_code(node: ast.AST) -> str:
    if not isinstance(node, ast.Call) or dotted_name(node.func).split(".")[-1] not in _ERROR_CLASSES:
        return ""
    first = node.args[0] if node.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def dead_files(project: Project) -> Iterator[Violation]:
    """Every module of src is reached from an entry point, by imports or by its name in a string."""
    files = {file.module: file for file in project.python("src")}
    reached: set[str] = set()
    # Kits (`ostinato.testing`) are imported by the tests of those who use Ostinato.
    waiting = [
        module
        for module, file in files.items()
        if module.startswith("ostinato.testing") or _RUN_BY_TOOLS.search(file.path)
    ]
    waiting += [
        module for module in _entry_points(project.texts.get("pyproject.toml", "")) if module in files
    ]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += [name for name in _named_by(files[module]) if name in files]
    for module in sorted(files.keys() - reached):
        yield Violation(files[module].path, 1, module, "is reached from no entry point; delete it")


def _named_by(file: PythonFile) -> set[str]:
    strings = {
        node.value
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {module for _, module in imported_modules(file)} | strings


def _entry_points(pyproject: str) -> set[str]:
    project = tomllib.loads(pyproject).get("project", {})
    groups = [project.get("scripts", {}), *project.get("entry-points", {}).values()]
    return {target.split(":")[0] for group in groups for target in group.values()}


def hollow_tests(project: Project) -> Iterator[Violation]:
    """Every test asserts something."""
    for file in project.python("tests", "src"):
        for name, function in file.functions:
            # A function of that name inside another is part of what is tested.
            if function.name.startswith("test_") and _is_collected(file, function) and not _asserts(function):
                yield Violation(file.path, function.lineno, name, "asserts nothing")


def _is_collected(file: PythonFile, function: Function) -> bool:
    containers = [file.tree, *(node for node in file.tree.body if isinstance(node, ast.ClassDef))]
    is_test_file = file.path.rsplit("/", 1)[-1].startswith("test_") or file.path.startswith(_CONTRACTS)
    return is_test_file and any(function in container.body for container in containers)


def _asserts(function: Function) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rsplit(".", 1)[-1].lower()
            if any(word in called for word in _ASSERTING):
                return True
    return False
