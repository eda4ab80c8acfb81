"""The stage of the kill matrix: two workers, kept from round to round, and how large a round is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from support.servers import TestDatabase
from support.stage import Load, Measures, Round, Stage
from support.witness import Excused

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
ROUNDS = 20 if FULL else 1

#: The shortest that there is, and what tests set.
WORKER_LEASE_S = 6.0
OWNERSHIP_LEASE_S = 3.0
#: No instance stays running for longer after the last crash (I9).
I9_S = 2 * OWNERSHIP_LEASE_S + WORKER_LEASE_S + 2
#: Clearly shorter than a lease less its margins; longer than a lease.
SHORTER_S, LONGER_S = (2.0, WORKER_LEASE_S + 3) if FULL else (1.5, WORKER_LEASE_S + 1)

WORKERS = ("a", "b")

#: 200 tasks that run until the gate is open, and short ones between them; fewer where time is short.
LOAD = (
    Load({"hold": 160, "block": 30, "command": 5, "escaping": 5}, {"hold": 40, "block": 4})
    if FULL
    else Load({"hold": 20, "block": 6, "command": 2, "escaping": 2}, {"hold": 8, "block": 2})
)
#: Enough for one worker to run everything that needs a process.
SLOTS = LOAD.slots


class Matrix:
    """Gives a stage under load to each round; after a round that failed it is built anew."""

    def __init__(
        self,
        folder: Path,
        *,
        database: TestDatabase | None = None,
        worker_lease_s: float = WORKER_LEASE_S,
    ) -> None:
        """`database` is one on a server; else each stage has a SQLite file."""
        self._worker_lease_s = worker_lease_s
        self._folder = folder
        self._database = database
        self._stage_count = 0
        self._is_clean = False
        self._stage: Stage | None = None
        self.measures = Measures()

    @property
    def stage(self) -> Stage:
        assert self._stage is not None, "begin() comes first"
        return self._stage

    def begin(self) -> Round:
        """A round whose load runs."""
        if not self._is_clean:
            self.close()
            self._stage_count += 1
            folder = self._folder / f"stage-{self._stage_count}"
            url = ""
            if self._database is not None:
                self._database.clean()
                url = self._database.url
            self._stage = Stage(
                folder,
                slots=SLOTS,
                measures=self.measures,
                database=url,
                worker_lease=f"{self._worker_lease_s:g}s",
            )
            self._stage.open(*WORKERS)
            self._probe()
        self._is_clean = False
        return self.stage.begin(LOAD)

    def finish(self, round: Round, *, excused: Sequence[Excused] = ()) -> None:
        """Judge a round and see that every slot of both workers is free again."""
        round.judge(excused=excused)
        self._probe()
        self._is_clean = True

    def close(self) -> None:
        """Kill what is there."""
        if self._stage is not None:
            self._stage.close()
            self._stage = None
            self._is_clean = False

    def _probe(self) -> None:
        """A task on every slot of both workers at once, which also has every slot process started."""
        probe = self.stage.begin(Load({"block": SLOTS * len(WORKERS)}))
        assert {name: len(probe.on(name)) for name in WORKERS} == dict.fromkeys(WORKERS, SLOTS)
        probe.judge()
