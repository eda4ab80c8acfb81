"""All contenders by name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from kit.servers import DURABILITY

from peers.broker_contenders import CeleryOnRabbitmq, CeleryOnRedis, Dramatiq, Saq
from peers.database_contenders import Oban, PgQueuer, Procrastinate
from peers.interface import Contender
from peers.ostinato_contender import OnMariadb, OnPostgres, OnSqlite, Ostinato

_OURS: tuple[type[Ostinato], ...] = (OnPostgres, OnMariadb, OnSqlite)
_PEERS: tuple[type[Contender], ...] = (
    CeleryOnRedis,
    CeleryOnRabbitmq,
    Dramatiq,
    Procrastinate,
    PgQueuer,
    Oban,
    Saq,
)

#: Names of ours by the database's.
OSTINATO = {kind.server: kind.name for kind in _OURS}
#: Names that ``--against`` takes.
PEERS = tuple(kind.name for kind in _PEERS)


def ostinato_on(database: str) -> type[Ostinato]:
    """Ours on this database; raises ``SystemExit`` for one that there is not."""
    for kind in _OURS:
        if kind.server == database:
            return kind
    raise SystemExit(f"unknown database {database}; there are {', '.join(OSTINATO)}")


def contender(name: str) -> type[Contender]:
    """The contender of this name."""
    return next(kind for kind in (*_OURS, *_PEERS) if kind.name == name)


def notes(names: Iterable[str]) -> list[str]:
    """What was durable, and what was chosen for each, as lines below a table."""
    kinds = [contender(name) for name in names]
    durable = "; ".join(DURABILITY[server] for server in dict.fromkeys(kind.server for kind in kinds))
    return [f"- {durable}", *(f"- {kind.name}: {kind.settings}" for kind in kinds)]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Who is compared, what the tasks are, and how often; `names_of` reads who."""
    parser.add_argument("--database", default="postgres", help=f"any of {','.join(OSTINATO)}")
    parser.add_argument("--against", default="", help=f"any of {','.join(PEERS)}")
    parser.add_argument("--kind", choices=("async", "def"), default="async")
    parser.add_argument("--count", type=int, default=20_000, help="tasks of the backlog")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=300, help="seconds that a part of a run may take")


def names_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """Ostinato's on each database, then the peers; ends the program where one is unknown."""
    names = [OSTINATO.get(name, name) for name in options.database.split(",")]
    names += [name for name in options.against.split(",") if name]
    if unknown := set(names) - {*OSTINATO.values(), *PEERS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return names
