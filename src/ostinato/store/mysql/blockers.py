"""Ends the sessions that a taker of partitions waits for.

Everybody may end sessions of the same user. To see which one holds a lock the user needs the privilege
``PROCESS`` (on MySQL ``SELECT`` on ``performance_schema``), and for sessions of other users
``CONNECTION ADMIN`` (MySQL: ``CONNECTION_ADMIN``). Without them the server's own time-outs end a former owner
that is frozen, within two to three seconds.
"""

from __future__ import annotations

import logging

from asyncmy.errors import MySQLError

from ostinato.store.mysql.session import Driver, change, fetch, session_of

#: The session is gone already.
_NO_SUCH_SESSION = 1094

_log = logging.getLogger("ostinato.store.mysql")

_MARIADB = """SELECT DISTINCT blocking.trx_mysql_thread_id
FROM information_schema.innodb_lock_waits AS lock_wait
JOIN information_schema.innodb_trx AS waiting ON waiting.trx_id = lock_wait.requesting_trx_id
JOIN information_schema.innodb_trx AS blocking ON blocking.trx_id = lock_wait.blocking_trx_id
WHERE waiting.trx_mysql_thread_id = {session} AND blocking.trx_mysql_thread_id <> 0"""
_MYSQL = """SELECT DISTINCT blocking.processlist_id
FROM performance_schema.data_lock_waits AS lock_wait
JOIN performance_schema.threads AS waiting ON waiting.thread_id = lock_wait.requesting_thread_id
JOIN performance_schema.threads AS blocking ON blocking.thread_id = lock_wait.blocking_thread_id
WHERE waiting.processlist_id = {session} AND blocking.processlist_id IS NOT NULL"""


async def end_blockers(driver: Driver, session: int) -> list[int]:
    """End the sessions that hold locks which `session` waits for; returns their numbers.

    Says in the log whom it has ended, and what it was not allowed to do.
    """
    if session_of(driver).server.is_mariadb:
        query, rights = _MARIADB, "PROCESS and CONNECTION ADMIN"
    else:
        query, rights = _MYSQL, "SELECT on performance_schema and CONNECTION_ADMIN"
    ended: list[int] = []
    try:
        for (blocker,) in await fetch(driver, query.format(session=session)):
            try:
                await change(driver, f"KILL {int(blocker)}")
            except MySQLError as error:
                if error.args[0] != _NO_SUCH_SESSION:
                    raise
            ended.append(int(blocker))
    except MySQLError as error:
        hint = f"grant it {rights}, or wait for the server's time-outs"
        _log.warning("takeover_blocked", extra={"reason": str(error.args[-1]), "hint": hint})
    if ended:
        _log.warning("takeover_ended_sessions", extra={"sessions": ended})
    return ended
