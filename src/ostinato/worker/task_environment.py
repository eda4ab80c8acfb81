"""What Python tasks get of their worker's environment: all of it but the worker's own settings."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.settings import SETTINGS

#: Settings that a task needs too: with them it submits work, and the command line finds its database.
_KEPT = {"OSTINATO_DATABASE", "OSTINATO_NAMESPACE"}
#: Where the join token is, what else the worker trusts: none of a task's business.
_OWN = {setting.variable for setting in SETTINGS} - _KEPT


def task_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` of the worker without its settings, but with the database, to which tasks submit."""
    return {name: value for name, value in environ.items() if name not in _OWN}
