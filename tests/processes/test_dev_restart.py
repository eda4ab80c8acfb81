"""``ostinato dev`` killed and started again: what ran is run again at once."""

from __future__ import annotations

import time
from pathlib import Path

from support.dev import Dev, running_dev


def until_attempt(dev: Dev, instance_id: str, number: int) -> None:
    deadline = time.monotonic() + 30
    while (shown := dev.json("instance", "show", instance_id))["attempt"] < number:
        assert time.monotonic() < deadline, shown


def test_c111_a_killed_dev_is_started_again_and_does_not_wait_for_the_lease_of_its_dead_worker(
    tmp_path: Path,
) -> None:
    """The default lease is a minute; the guardian has ended the tree and left word for the next worker."""
    with running_dev(tmp_path) as dev:
        instance_id = dev.json("task", "trigger", "endless")["instance_id"]
        until_attempt(dev, instance_id, 1)
        dev.process.kill()
        dev.process.wait()
    with running_dev(tmp_path) as dev:
        until_attempt(dev, instance_id, 2)
        (lost,) = [row for row in dev.json("instance", "show", instance_id)["attempts"] if row["code"]]
        assert lost["code"] == "WORKER_LOST"
        dev.json("instance", "cancel", instance_id)
