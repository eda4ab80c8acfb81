"""The pytest plugin: there by itself, without a scheduler; and what a failing test shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: What takes long to load and has no part in this.
_LIGHT = [
    word
    for name in ("cacheprovider", "schemathesis", "hypothesispytest", "faker", "anyio")
    for word in ("-p", f"no:{name}")
]
_SHOP = """
    from ostinato import App, Retry

    app = App("shop")

    @app.task(retry=Retry.fixed("5s", max_retry=1))
    def push(number):
        raise ConnectionError(f"no route to {number}")
"""


def test_a_failing_test_shows_the_stories_of_its_instances(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=_SHOP)
    pytester.makepyfile(
        """
        from shop import app, push

        def test_push(ostinato_cluster):
            cluster = ostinato_cluster(app)
            instance = cluster.finish(push.submit(7))
            assert instance.state == "success"
        """
    )
    result = pytester.runpytest_subprocess(*_LIGHT)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*Ostinato instances*",
            "*state    failed: not retried: its one retry is used up*",
            "*at *shop.py:7, in push",
            "*decided *retry 1 of 1; waits 5s*",
        ]
    )
    # There is no database in which a command would find it.
    result.stdout.no_fnmatch_line("*ostinato instance*")


def test_a_story_that_the_error_tells_is_not_told_again(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There pytest's summary repeats all of an error.
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(shop=_SHOP)
    pytester.makepyfile(
        """
        from shop import app, push

        def test_push(ostinato_cluster):
            cluster = ostinato_cluster(app)
            cluster.pause(push)
            cluster.finish(push.submit(7), within="1m")
        """
    )
    result = pytester.runpytest_subprocess(*_LIGHT)
    result.assert_outcomes(failed=1)
    assert result.stdout.str().count("created  2026-01-01") == 1
    result.stdout.fnmatch_lines(["*Ostinato instances*", "told above"])


def test_pytest_alone_imports_nothing_of_the_scheduler(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            ours = sorted(name for name in sys.modules if name.split(".")[0] == "ostinato")
            assert ours == ["ostinato", "ostinato.testing", "ostinato.testing.plugin"]
            assert not {"msgspec", "sqlalchemy", "grpc", "asyncio"} & set(sys.modules)
        """
    )
    result = pytester.runpytest_subprocess(*_LIGHT, "-p", "no:asyncio")
    result.assert_outcomes(passed=1)


def test_the_plugin_can_be_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(ostinato_cluster):\n    assert False")
    result = pytester.runpytest_subprocess("-p", "no:ostinato", *_LIGHT)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'ostinato_cluster' not found*"])


def test_the_kit_needs_no_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "from ostinato import App\n"
        "from ostinato.testing import Cluster\n"
        "app = App('shop')\n"
        "work = app.task(name='work')(lambda: 7)\n"
        "with Cluster(app): print(work.submit().result())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("7\n", "")
