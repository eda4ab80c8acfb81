"""What Python tasks get of their worker's environment: all of it but the worker's own settings.

What is no setting of a worker passes as it is, ``OSTINATO_URL`` among it, which says where tasks submit to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ostinato.settings import SETTINGS

#: Says which scheduler an app talks to; it goes before ``OSTINATO_DATABASE``.
URL_VARIABLE = "OSTINATO_URL"
#: Settings that a task needs too: with them it submits work, held back as that of others is, and the command
#: line finds its database.
_KEPT = {
    "OSTINATO_DATABASE",
    "OSTINATO_NAMESPACE",
    "OSTINATO_PRESSURE_YELLOW",
    "OSTINATO_PRESSURE_RED",
}
#: Where the join token is, what else the worker trusts: none of a task's business.
_OWN = {setting.variable for setting in SETTINGS} - _KEPT


def task_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` of the worker without its settings, but with the scheduler and database of submissions."""
    return {name: value for name, value in environ.items() if name not in _OWN}


@contextmanager
def submitting_to(url: str) -> Iterator[None]:
    """Tasks whose processes are started meanwhile submit to the scheduler at `url`, unless an app names one.

    This process's own environment says so, as they get theirs from it; it is put back at the end.
    """
    before = os.environ.get(URL_VARIABLE)
    os.environ[URL_VARIABLE] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ[URL_VARIABLE]
        else:
            os.environ[URL_VARIABLE] = before
