"""``ostinato dev`` takes changed code and documents over, and survives those that are wrong."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from support.reloading import SHOP, ReloadingDev, reloading_dev, start_dev

TASKS = """\
version: 1
tasks:
  - name: hello
    shell: {command: "echo hello"}
    timeout: 1h
"""


def _declared(dev: ReloadingDev) -> set[str]:
    return {task["name"] for task in dev.json("task", "list")}


def _result(dev: ReloadingDev, task: str) -> object:
    return dev.json("task", "trigger", task, "--wait")["result"]


# ── code ──────────────────────────────────────────────────────────────────────────────────────────────


def test_changed_code_is_taken_over_while_what_runs_ends_with_the_old_code_and_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py", "--slots", "1") as dev:
        instance = dev.json("task", "trigger", "slow")
        identity = instance.get("instance_id") or instance["id"]
        trace = tmp_path / f"ran-{identity}"
        dev.until(trace.exists)
        changed = SHOP.replace("max_retry=3", "max_retry=5").replace("old", "new")
        dev.write("shop.py", changed + "\n\n@app.task\ndef fresh() -> str:\n    return 'fresh'\n")
        dev.until_said("reloaded: 1 added, 1 changed, 0 no longer declared")
        assert "  + fresh\n" in dev.said
        assert "  ~ add: retry.max_retry 3 → 5\n" in dev.said
        # On the new worker, though the only slot of the old one is taken.
        assert _result(dev, "fresh") == "fresh"
        assert dev.json("instance", "show", identity)["state"] == "running"
        (tmp_path / "go").touch()
        dev.until(lambda: dev.json("instance", "show", identity)["state"] == "success")
        ended = dev.json("instance", "show", identity)
        assert (ended["result"], ended["attempt"]) == ("old", 1)
        assert trace.read_text(encoding="utf-8") == "old\n"
        assert _result(dev, "slow") == "new"
        dev.until(lambda: len(_workers(dev)) == 1)


def _workers(dev: ReloadingDev) -> set[str]:
    """Directories of workers that live."""
    return {path.name for path in (dev.directory / ".ostinato" / "spool").glob("*.db")}


def test_code_that_does_not_import_is_shown_and_the_old_goes_on_until_it_is_repaired(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py") as dev:
        dev.write("shop.py", SHOP + "\nx = (\n")
        dev.until_complained("not reloaded, what ran before goes on")
        assert f"{tmp_path / 'shop.py'}, line " in dev.complained
        assert "SyntaxError: '(' was never closed" in dev.complained
        assert _result(dev, "add") == 1
        dev.write("shop.py", SHOP + "\n\ndef fails():\n    return {}['key']\n\n\nfails()\n")
        dev.until_complained("KeyError: 'key'")
        assert "return {}['key']" in dev.complained
        assert "importlib" not in dev.complained
        dev.write("shop.py", SHOP.replace("first + 1", "first + 2"))
        dev.until_said("reloaded: code only")
        assert _result(dev, "add") == 2


def test_what_we_refuse_is_one_sentence_with_its_place_and_other_errors_show_own_files_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py") as dev:
        wrong = SHOP.replace('"10ms"', '"1"')
        dev.write("shop.py", wrong)
        dev.until_complained("not reloaded, what ran before goes on")
        dev.until_complained(f"({tmp_path / 'shop.py'}, line ")
        line = next(row for row in dev.complained.splitlines() if "could not be imported" in row)
        number = wrong[: wrong.index("Retry.fixed")].count("\n") + 1
        assert f"line {number})" in line
        assert "UserError" not in dev.complained
        assert "Traceback" not in dev.complained
        assert "site-packages" not in dev.complained
        dev.write("shop.py", SHOP + "\nimport json\n\njson.loads('{')\n")
        dev.until_complained("JSONDecodeError: Expecting property name")
        assert "json.loads('{')" in dev.complained
        assert "raw_decode" not in dev.complained
        assert "src/ostinato" not in dev.complained


def test_same_size_in_the_same_second_is_a_change_too(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    stamp = (tmp_path / "shop.py").stat().st_mtime_ns
    with reloading_dev(tmp_path, "shop.py") as dev:
        assert _result(dev, "add") == 1
        dev.write("shop.py", SHOP.replace("first + 1", "first + 7"))
        # So a fast editor's file looks to Python: bytecode of the same second and size counts as current.
        os.utime(tmp_path / "shop.py", ns=(stamp, stamp))
        dev.until_said("reloaded: code only")
        assert _result(dev, "add") == 7


def test_deleted_file_is_told_and_restored_it_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py") as dev:
        (tmp_path / "shop.py").unlink()
        dev.until_complained("there is no file shop.py")
        assert _result(dev, "add") == 1
        dev.write("shop.py", SHOP.replace("first + 1", "first + 3"))
        dev.until_said("reloaded: code only")
        assert _result(dev, "add") == 3


def test_task_that_is_no_longer_declared_is_told_and_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py") as dev:
        dev.write("shop.py", SHOP.partition("@app.task\ndef slow")[0])
        dev.until_said("reloaded: 0 added, 0 changed, 1 no longer declared")
        assert "  - slow stays as it is; ostinato task delete slow ends it\n" in dev.said
        assert _declared(dev) == {"add", "slow"}


def test_package_in_a_linked_folder_is_watched_and_several_files_are_one_change(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "shop"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("from shop.tasks import app\n", encoding="utf-8")
    (real / "tasks.py").write_text(f"from shop.step import STEP\n{SHOP}".replace("+ 1", "+ STEP"))
    (real / "step.py").write_text("STEP = 1\n", encoding="utf-8")
    home = tmp_path / "home"
    home.mkdir()
    (home / "shop").symlink_to(real)
    with reloading_dev(home, "shop:app") as dev:
        assert _result(dev, "add") == 1
        (real / "step.py").write_text("SIZE = 4\n", encoding="utf-8")
        (real / "tasks.py").write_text(
            f"from shop.step import SIZE\n{SHOP}".replace("+ 1", "+ SIZE"), encoding="utf-8"
        )
        dev.until_said("reloaded: code only")
        assert dev.complained == ""
        assert _result(dev, "add") == 4
        assert dev.said.count("reloaded") == 1


def test_files_that_are_no_code_of_the_app_reload_nothing(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    for folder in (".git", "__pycache__", ".ostinato/workers", "node_modules/x"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    with reloading_dev(tmp_path, "shop.py") as dev:
        for name in (".git/hook.py", "__pycache__/a.py", ".ostinato/workers/task.py", "node_modules/x/y.py"):
            (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
        for name in ("notes.txt", ".#shop.py", "shop.py~", "tasks.yaml", "flycheck_shop.py"):
            (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
        # Work writes to the database and the data directory meanwhile.
        assert _result(dev, "add") == 1
        dev.write("shop.py", SHOP.replace("first + 1", "first + 2"))
        dev.until_said("reloaded: code only")
        assert dev.said.count("reloaded") == 1


def test_without_reload_nothing_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py", "--no-reload") as dev:
        assert "as they are saved" not in dev.said
        dev.write("shop.py", SHOP.replace("first + 1", "first + 2"))
        assert psutil.Process(dev.process.pid).is_running()
        assert _inotify_count(dev) == 0
        assert _result(dev, "add") == 1


def _inotify_count(dev: ReloadingDev) -> int:
    """Watches that the process has with the kernel."""
    folder = Path(f"/proc/{dev.process.pid}/fd")
    return sum("inotify" in os.readlink(entry) for entry in folder.iterdir())


def test_folder_given_with_reload_dir_is_watched_too(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "library"
    home.mkdir()
    other.mkdir()
    (other / "step.py").write_text("STEP = 1\n", encoding="utf-8")
    source = f"import sys\nsys.path.insert(0, {str(other)!r})\nfrom step import STEP\n{SHOP}"
    (home / "shop.py").write_text(source.replace("first + 1", "first + STEP"), encoding="utf-8")
    with reloading_dev(home, "shop.py", "--reload-dir", str(other)) as dev:
        (other / "step.py").write_text("STEP = 5\n", encoding="utf-8")
        dev.until_said("reloaded: code only")
        assert _result(dev, "add") == 5


@pytest.mark.parametrize("where", ["the probe", "the new worker"])
def test_ctrl_c_during_a_reload_stops_cleanly_and_leaves_no_process(where: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py", "--slots", "1") as dev:
        probe_passes = "import os, sys\nis_probe = sys.argv[0].endswith('app_probe.py')\n"
        waits = "is_probe" if where == "the probe" else "not is_probe"
        stall = (
            f"{probe_passes}if {waits}:\n    open('stalled', 'w').close()\n    import time; time.sleep(600)\n"
        )
        dev.write("shop.py", stall + SHOP)
        dev.until((tmp_path / "stalled").exists)
        tree = [*psutil.Process(dev.process.pid).children(recursive=True)]
        assert tree
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(40) == 130
    _, alive = psutil.wait_procs(tree, timeout=20)
    assert alive == []
    assert "Traceback" not in dev.complained


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────


def test_documents_run_without_an_app_and_are_applied_again_when_they_change(tmp_path: Path) -> None:
    (tmp_path / "tasks.yaml").write_text(TASKS, encoding="utf-8")
    with reloading_dev(tmp_path, "tasks.yaml") as dev:
        assert dev.json("task", "trigger", "hello", "--wait")["state"] == "success"
        dev.write("tasks.yaml", TASKS.replace("1h", "5m") + "  - name: more\n    shell: {command: 'true'}\n")
        dev.until_said("reloaded: 1 added, 1 changed, 0 no longer declared")
        assert "  ~ hello: timeout 1h → 5m\n" in dev.said
        assert _declared(dev) == {"hello", "more"}
        dev.write("tasks.yaml", TASKS.replace("timeout", "timeuot"))
        dev.until_complained("tasks.yaml:5:5: tasks[0].timeuot")
        assert dev.json("task", "trigger", "more", "--wait")["state"] == "success"
        dev.write("tasks.yaml", TASKS)
        dev.until_said("1 no longer declared")
        assert _declared(dev) == {"hello", "more"}


def test_folder_of_documents_beside_an_app_and_a_python_task_without_one(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "jobs.py").write_text("def twice(n: int) -> int:\n    return 2 * n\n", encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "one.yaml").write_text(TASKS, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py", "tasks") as dev:
        assert _declared(dev) == {"add", "slow", "hello"}
        (tmp_path / "tasks" / "two.yaml").write_text(
            "version: 1\ntasks:\n  - name: twice\n    python: {call: 'jobs:twice'}\n    payload: {n: 4}\n",
            encoding="utf-8",
        )
        dev.until_said("  + twice\n")
        assert _result(dev, "twice") == 8


def test_task_of_the_app_and_of_a_document_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "tasks.yaml").write_text(TASKS.replace("hello", "add", 1), encoding="utf-8")
    dev = start_dev(tmp_path, "shop.py", "tasks.yaml")
    assert dev.process.wait(60) == 2
    assert "tasks.yaml:3:5: name: task default/add is declared by the app shop.py and in a document" in (
        dev.complained
    )
    assert _left(tmp_path) == {"shop.py", "tasks.yaml"}


# ── nothing is left behind ────────────────────────────────────────────────────────────────────────────


def _left(directory: Path) -> set[str]:
    shutil.rmtree(directory / "__pycache__", ignore_errors=True)
    return {path.name for path in directory.iterdir()} - {"dev.out", "dev.err"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tasks.yaml", TASKS.replace("shell", "shel"), "tasks.yaml:4:5"),
        ("tasks.yaml", "version: 1\ntasks: [\n", "tasks.yaml:"),
        ("shop.py", "import nosuchmodule\n", "nosuchmodule"),
        ("shop.py", "x = 1\n", "has no App"),
        ("shop.py", "import os\nos._exit(9)\n", "ended with exit status 9"),
    ],
)
def test_app_or_document_that_is_wrong_at_the_start_ends_with_2_and_leaves_nothing(
    name: str, content: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    dev = start_dev(tmp_path, name)
    assert dev.process.wait(60) == 2, dev.complained
    assert words in dev.complained
    assert "Traceback" not in dev.complained.partition("INVALID")[0]
    assert _left(tmp_path) == {name}


def test_token_file_that_is_not_there_ends_with_2_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "ostinato.toml").write_text('join_token_file = "nothing"\n', encoding="utf-8")
    dev = start_dev(tmp_path, "shop.py")
    assert dev.process.wait(60) == 2
    assert "ostinato.toml: join_token_file: nothing cannot be read" in dev.complained
    assert _left(tmp_path) == {"shop.py", "ostinato.toml"}
