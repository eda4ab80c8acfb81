"""Workers on other machines: TLS, the join token, and networks that cut, fall silent, delay and lose."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import self_signed
from support.proxy import Proxy
from support.services import Services

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
TOKEN = "open-sesame-and-nothing-else"

APP = """
@app.task(timeout="2h")
def slow(context: Context) -> str:
    witness(context, "start")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    witness(context, "end")
    return "done"


@app.task()
def surroundings(context: Context) -> list[str]:
    return sorted(name for name in os.environ if name.startswith("OSTINATO_"))
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, APP)
    yield started
    (tmp_path / "go").touch()
    started.close()


@pytest.fixture
def remote(services: Services) -> Services:
    """Services whose scheduler asks for the token and speaks TLS, and whose workers do as well."""
    certificate, token = self_signed(services.folder), services.folder / "token"
    token.write_text(f"{TOKEN}\n")
    shutil.copy(certificate.certificate, services.folder / "trusted.pem")
    services.environment.update(
        OSTINATO_JOIN_TOKEN_FILE=str(token),
        OSTINATO_TLS_CERTIFICATE=str(certificate.certificate),
        OSTINATO_TLS_KEY=str(certificate.key),
        OSTINATO_TLS_CA=str(services.folder / "trusted.pem"),
    )
    return services


def _log(services: Services, name: str) -> list[dict[str, object]]:
    lines = (services.folder / f"{name}.log").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def _events(services: Services, name: str) -> list[object]:
    return [line.get("event") for line in _log(services, name)]


def _worker(services: Services, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A worker that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "ostinato.cli", "worker", *options],
        cwd=services.folder,
        env={**services.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _running_slow(services: Services) -> str:
    slow = services.run("print(slow.submit().id)")
    services.until(lambda: services.state(slow) == ("running", 1) and services.witnessed(slow))
    return slow


def _ends_as_one_attempt(services: Services, instance_id: str) -> None:
    (services.folder / "go").touch()
    services.until(lambda: services.state(instance_id) == ("success", 1))
    assert services.witnessed(instance_id) == {1: ["start", "end"]}


def test_a_worker_with_token_and_tls_runs_tasks_which_see_neither(remote: Services) -> None:
    remote.start_scheduler(workers_host="0.0.0.0")
    remote.start_worker()
    seen = remote.run("print(surroundings.submit().id)")
    remote.until(lambda: remote.state(seen) == ("success", 1))
    shown = remote.command("instance", "show", seen)
    assert isinstance(shown, dict)
    names = set(shown["result"])
    assert "OSTINATO_DATABASE" in names
    assert not {name for name in names if "TOKEN" in name or "TLS" in name}
    assert "scheduler_found" in _events(remote, "worker")
    assert TOKEN not in remote.logs() + json.dumps(shown)


@pytest.mark.parametrize("content", ["another-token", None], ids=["another", "none"])
def test_a_worker_with_an_unknown_token_ends_with_2_and_says_so(
    content: str | None, remote: Services
) -> None:
    remote.start_scheduler(workers_host="0.0.0.0")
    mine = remote.folder / "mine"
    mine.write_text(content or "")
    where = {"OSTINATO_JOIN_TOKEN_FILE": str(mine)}
    if content is None:
        del remote.environment["OSTINATO_JOIN_TOKEN_FILE"]
        where = {}
    ended = _worker(remote, "--scheduler", remote.workers_address, **where)
    assert ended.returncode == 2, ended.stderr
    assert "UNKNOWN_TOKEN" in ended.stderr
    assert TOKEN not in ended.stderr + remote.logs()


def test_a_token_is_not_sent_to_another_machine_unencrypted(services: Services) -> None:
    (services.folder / "token").write_text(TOKEN)
    ended = _worker(services, "--scheduler", "192.0.2.1:8641", "--join-token-file", "token")
    assert ended.returncode == 2
    assert "--scheduler: the join token would go to 192.0.2.1:8641 unencrypted" in ended.stderr
    assert "--tls-ca" in ended.stderr
    assert TOKEN not in ended.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--join-token-file", "--join-token-file: absent cannot be read: No such file or directory"),
        ("--tls-ca", "--tls-ca: absent cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_not_there_ends_the_worker_and_is_named(
    option: str, said: str, services: Services
) -> None:
    ended = _worker(services, option, "absent")
    assert ended.returncode == 2
    assert said in ended.stderr


def test_a_worker_that_trusts_another_certificate_says_so_and_joins_once_that_is_put_right(
    remote: Services,
) -> None:
    trusted = remote.folder / "trusted.pem"
    shutil.copy(self_signed(remote.folder, "other").certificate, trusted)
    remote.start_scheduler(workers_host="0.0.0.0")
    remote.start_worker()
    remote.until(lambda: "scheduler_unreachable" in _events(remote, "worker"))
    [told] = [line for line in _log(remote, "worker") if line.get("event") == "scheduler_unreachable"]
    assert "its certificate is not the expected one" in str(told["reason"])
    shutil.copy(remote.folder / "scheduler.pem", trusted)
    remote.until(lambda: "scheduler_found" in _events(remote, "worker"))
    # One line a minute, however often it has tried.
    assert _events(remote, "worker").count("scheduler_unreachable") == 1
    # gRPC writes lines of its own about each handshake, unless it is told not to.
    lines = (remote.folder / "worker.log").read_text().splitlines()
    assert [line for line in lines if not line.startswith("{")] == []


def test_the_guardian_of_a_killed_worker_reports_through_tls_with_the_token(remote: Services) -> None:
    remote.start_scheduler(workers_host="0.0.0.0")
    remote.start_worker()
    slow = _running_slow(remote)
    remote.kill("worker")
    remote.until(lambda: "tree_end_reported" in _events(remote, "scheduler"))
    remote.start_worker("other")
    remote.until(lambda: 2 in remote.witnessed(slow))
    assert remote.witnessed(slow)[1] == ["start"]


def test_c099_a_worker_whose_address_changes_keeps_its_attempt(remote: Services) -> None:
    """C099: a NAT that forgets its connections is a cut, and each new connection has another address."""
    remote.start_scheduler(workers_host="0.0.0.0")
    with Proxy(remote.workers_address) as proxy:
        remote.start_worker(scheduler=proxy.address)
        slow = _running_slow(remote)
        for round_count in range(1, 6):
            proxy.cut()
            remote.until(lambda: _events(remote, "worker").count("scheduler_found") == round_count + 1)  # noqa: B023 - called at once
            assert remote.state(slow) == ("running", 1)
        _ends_as_one_attempt(remote, slow)
        assert proxy.accepted_count == 6


def test_c113_a_silent_network_is_noticed_on_both_sides_and_the_attempt_goes_on_after_it(
    remote: Services,
) -> None:
    """C113: connections stay open and nothing arrives. The worker's lease of 60 s outlives the silence."""
    remote.environment["OSTINATO_WORKER_LEASE"] = "60s"
    remote.start_scheduler(workers_host="0.0.0.0")
    with Proxy(remote.workers_address) as proxy:
        remote.start_worker(scheduler=proxy.address)
        slow = _running_slow(remote)
        proxy.blackhole()
        remote.until(lambda: "scheduler_lost" in _events(remote, "worker"), within_s=15 + 5)
        remote.until(lambda: "worker_disconnected" in _events(remote, "scheduler"), within_s=15 + 5)
        proxy.resume()
        remote.until(lambda: _events(remote, "worker").count("scheduler_found") == 2, within_s=15)
        _ends_as_one_attempt(remote, slow)
        assert _events(remote, "worker").count("scheduler_lost") == 1


def test_c077_delay_and_loss_below_the_lease_lose_no_attempt(remote: Services) -> None:
    """C077: 400 ms each way and a fifth of all packets lost, on the shortest lease there is."""
    duration_s = 3_600 if FULL else 15
    remote.start_scheduler(workers_host="0.0.0.0")
    with Proxy(remote.workers_address, delay_s=0.4, loss=0.2, retransmission_s=1.0) as proxy:
        remote.start_worker(scheduler=proxy.address)
        slow = _running_slow(remote)
        remote.pass_time(duration_s)
        assert remote.state(slow) == ("running", 1)
        _ends_as_one_attempt(remote, slow)
        assert "scheduler_lost" not in _events(remote, "worker")
