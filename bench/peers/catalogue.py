"""All contenders by name."""

from __future__ import annotations

from peers.broker_contenders import CeleryOnRabbitmq, CeleryOnRedis, Dramatiq, Saq
from peers.database_contenders import Oban, PgQueuer, Procrastinate
from peers.interface import Contender
from peers.ostinato_contender import OnMariadb, OnPostgres, OnSqlite

_OURS: tuple[type[Contender], ...] = (OnPostgres, OnMariadb, OnSqlite)
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


def contender(name: str) -> type[Contender]:
    """The contender of this name."""
    return next(kind for kind in (*_OURS, *_PEERS) if kind.name == name)
