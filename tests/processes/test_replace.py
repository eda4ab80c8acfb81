"""Overlap ``replace`` with a real command that takes its time to end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from support.services import Services

APP = '''
app.shell(
    "stubborn",
    command="""
        trap 'sleep 1.5; echo end $(date +%s%N) >> "$WITNESS/$OSTINATO_INSTANCE_ID"; exit 1' TERM
        echo start $(date +%s%N) >> "$WITNESS/$OSTINATO_INSTANCE_ID"
        while :; do sleep 0.05; done
    """,
    env={"WITNESS": str(HERE / "witness")},
    triggers=[every("3s")],
    overlap="replace",
    grace="5s",
    retry=Retry.none(),
)
'''


def test_c045_the_new_run_starts_only_after_the_old_process_is_gone(tmp_path: Path) -> None:
    services = Services(tmp_path, APP)
    try:
        services.start_scheduler()
        services.start_worker()
        query = "select id, reason from instance where state = 'cancelled' order by fire_us"
        services.until(lambda: len(services.rows(query)) >= 2)
        runs = [
            [line.split() for line in (tmp_path / "witness" / str(identity)).read_text().splitlines()]
            for identity, _ in services.rows(query)
        ]
        assert [[word for word, _ in run] for run in runs] == [["start", "end"]] * len(runs)
        for earlier, later in pairwise(runs):
            assert int(earlier[1][1]) <= int(later[0][1])
        ids = [str(identity) for (identity,) in services.rows("select id from instance order by fire_us")]
        for index, (identity, reason) in enumerate(services.rows(query)):
            assert identity == ids[index]
            assert f"replaced by {ids[index + 1]}" in str(reason)
    finally:
        services.close()
