"""The pytest plugin: a fixture that makes clusters, and the story of a test's instances when it fails.

pytest imports this file wherever Ostinato is installed, so it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from ostinato.sdk.app import App
    from ostinato.testing.cluster import Cluster

#: Of a failed test: so many instances are told.
STORIES_MAX = 5

_clusters: pytest.StashKey[list[Cluster]] = pytest.StashKey()


class MakeCluster(Protocol):
    """What the fixture gives; the arguments are those of ``Cluster``."""

    def __call__(self, *apps: App, start: datetime | None = None, seed: int = 0) -> Cluster: ...


@pytest.fixture
def ostinato_cluster(request: pytest.FixtureRequest) -> Iterator[MakeCluster]:
    """Makes a cluster that runs the tasks of apps in this test, on virtual time; closed after the test."""
    made: list[Cluster] = []
    request.node.stash[_clusters] = made

    def make(*apps: App, start: datetime | None = None, seed: int = 0) -> Cluster:
        from ostinato.testing.cluster import Cluster

        cluster = Cluster(*apps, start=start, seed=seed)
        made.append(cluster)
        return cluster

    yield make
    for cluster in reversed(made):
        cluster.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the stories to the report of a test that has failed, while its clusters are there to be asked."""
    report = yield
    if report.failed and call.when == "call":
        for cluster in item.stash.get(_clusters, []):
            try:
                told = _stories(cluster, told_id=getattr(_raised(call), "told_id", ""))
            except Exception as error:  # noqa: BLE001 - told in its place: the test's own failure counts
                told = f"they cannot be told: {type(error).__name__}: {error}"
            report.sections.append(("Ostinato instances", told))
    return report


def _raised(call: pytest.CallInfo[None]) -> BaseException | None:
    return None if call.excinfo is None else call.excinfo.value


def _stories(cluster: Cluster, *, told_id: str) -> str:
    """Stories of its instances but for the one that the error itself tells (`told_id`)."""
    instances = [instance for instance in cluster.instances() if instance.id != told_id]
    # What went wrong is told first.
    instances.sort(key=lambda instance: instance.state == "success")
    told = [instance.story for instance in instances[:STORIES_MAX]]
    left = instances[STORIES_MAX:]
    return "\n\n".join([*told, *(repr(instance) for instance in left[: STORIES_MAX * 4])]) or (
        "told above" if told_id else "none"
    )
