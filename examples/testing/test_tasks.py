"""Tests of `tasks.py`, each a story of hours or days that takes milliseconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from tasks import app, capture, captured, receipt, settle_day, upload

from ostinato.testing import Cluster, MakeCluster

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def cluster(ostinato_cluster: MakeCluster) -> Cluster:
    """The evening before clocks change, with nothing captured."""
    captured.clear()
    return ostinato_cluster(app, start=datetime(2026, 3, 28, 18, tzinfo=BERLIN))


def test_a_capture_is_followed_by_its_receipt(cluster: Cluster) -> None:
    assert capture.submit("order-1", 500).result() == "captured 500 for order-1"
    cluster.finish()
    assert [instance.result for instance in cluster.instances(receipt)] == ["receipt for order-1: 500"]


def test_a_bank_that_is_away_for_a_quarter_of_an_hour_is_waited_for(cluster: Cluster) -> None:
    cluster.fail(capture, ConnectionRefusedError("bank.example"), attempts=range(1, 8))
    instance = cluster.finish(capture.submit("order-1", 500))
    assert instance.state == "success"
    assert instance.delays == ["10s", "20s", "40s", "1m20s", "2m40s", "5m20s", "10m40s"]
    assert "ECONNREFUSED" in instance.retries[0].reason


def test_a_bank_that_is_away_for_a_day_is_given_up(cluster: Cluster) -> None:
    cluster.fail(capture, 503)
    instance = cluster.finish(capture.submit("order-1", 500))
    assert (instance.state, captured) == ("failed", {})
    assert instance.finished is not None
    assert instance.finished - instance.created < timedelta(days=1)


def test_an_order_is_captured_once_however_often_it_is_submitted(cluster: Cluster) -> None:
    handles = [capture.options(key="order-1").submit("order-1", 500) for _ in range(3)]
    cluster.finish()
    assert len({handle.id for handle in handles}) == 1
    assert len(cluster.instances(receipt)) == 1


def test_a_bad_amount_is_refused_without_a_retry(cluster: Cluster) -> None:
    instance = cluster.finish(capture.submit("order-1", 0))
    assert [attempt.code for attempt in instance.attempts] == ["BAD_AMOUNT"]


def test_the_settlement_runs_once_in_the_night_in_which_half_past_two_is_missing(cluster: Cluster) -> None:
    cluster.advance("2d")
    fires = [str(instance.fire) for instance in cluster.instances(settle_day)]
    assert fires == ["2026-03-29 03:00:00+02:00", "2026-03-30 02:30:00+02:00"]
    assert cluster.instances(settle_day)[0].result == "settled 2026-03-28: 0"


def test_a_capture_that_hangs_is_ended_after_30_seconds_and_tried_again(cluster: Cluster) -> None:
    cluster.hang(capture, attempts=(1,))
    instance = cluster.finish(capture.submit("order-1", 500))
    assert (instance.attempts[0].code, instance.attempts[0].duration) == ("TIMEOUT", timedelta(seconds=30))
    assert instance.state == "success"


def test_an_upload_is_tried_again_only_if_the_bank_is_busy(cluster: Cluster) -> None:
    cluster.stub(upload, {"exit_code": 0, "stdout_tail": ""})
    cluster.fail(upload, "EXIT_75", attempts=(1,))
    assert cluster.finish(upload.submit()).delays == ["5m"]
    cluster.fail(upload, "EXIT_1")
    assert cluster.finish(upload.submit()).delays == []
