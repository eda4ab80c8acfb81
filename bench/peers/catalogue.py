"""All contenders by name."""

from __future__ import annotations

from peers.interface import Contender
from peers.ostinato_contender import OnMariadb, OnPostgres, OnSqlite

_OURS: tuple[type[Contender], ...] = (OnPostgres, OnMariadb, OnSqlite)
_PEERS: tuple[type[Contender], ...] = ()

#: Names of ours by the database's.
OSTINATO = {kind.server: kind.name for kind in _OURS}
#: Names that ``--against`` takes.
PEERS = tuple(kind.name for kind in _PEERS)


def contender(name: str) -> type[Contender]:
    """The contender of this name."""
    return next(kind for kind in (*_OURS, *_PEERS) if kind.name == name)
