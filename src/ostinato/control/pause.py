"""Pause, resume, disable, enable: ask the owner to change how a task is treated."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ostinato.control.queries import get_task
from ostinato.control.requests import Asker, ask, make_request, require_ok
from ostinato.core.definition import TaskRef
from ostinato.store.batches import RequestAnswer
from ostinato.store.protocol import Store

FlagVerb: TypeAlias = Literal["pause", "resume", "disable", "enable"]


async def set_task_flag(store: Store, ref: TaskRef, *, verb: FlagVerb, asker: Asker) -> RequestAnswer:
    """Ask for `verb` and return once the owner has done it; asking for what already holds is fine.

    *pause* stops fires and new attempts, what waits is held; *resume* lets them go on without firing what was
    missed; *disable* also cancels what waits and refuses submissions; *enable* undoes it. Raises
    ``TASK_NOT_FOUND``, and as `ask`. Source: design section 11, Pause.
    """
    row = await get_task(store, ref)
    request = make_request(
        asker,
        verb,
        partition=row.partition,
        namespace=ref.namespace,
        task=ref.name,
        created_us=await store.now_us(),
    )
    return require_ok((await ask(store, [request], asker=asker))[0])
