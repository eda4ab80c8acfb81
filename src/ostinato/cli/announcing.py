"""The first words of a node from the command line: where it listens, what it found."""

from __future__ import annotations

from ostinato.assembly import OnReady, Running
from ostinato.cli.output import complain, print_json, print_table, safe, say
from ostinato.cli.views import instant
from ostinato.control.queries import task_triggers
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.schedule.trigger import describe_trigger
from ostinato.core.url_text import shown_url
from ostinato.settings import Settings
from ostinato.store.batches import TriggerRow

#: Longest wait for the owner to put new triggers in force before they are shown.
_IN_FORCE_US_MAX = 3 * SECOND
_POLL_US = 20 * MILLISECOND


def announce_scheduler(settings: Settings, *, in_json: bool) -> OnReady:
    """Says where a scheduler listens."""

    async def announce(running: Running) -> None:
        if in_json:
            print_json(
                {
                    "database": shown_url(settings.database),
                    "workers": running.workers,
                    "api": str(running.api),
                }
            )
            return
        say(f"scheduler on database {safe(shown_url(settings.database))}")
        say(f"workers connect to {running.workers}")
        say(f"API, health and metrics on http://{running.api}")

    return announce


def announce_dev(settings: Settings, *, shown: str, reloads: bool, in_json: bool) -> OnReady:
    """Says what runs where, which tasks were found in what is `shown`, and when each fires next."""

    async def announce(running: Running) -> None:
        await _until_in_force(running)
        tasks = [(ref, await task_triggers(running.store, ref)) for ref in sorted(running.tasks)]
        if in_json:
            print_json(
                {
                    "database": shown_url(settings.database),
                    "api": str(running.api),
                    "tasks": [
                        {"namespace": ref.namespace, "name": ref.name, "next": _next_fire(triggers)}
                        for ref, triggers in tasks
                    ],
                    "problems": running.problems,
                }
            )
            return
        say(f"{safe(shown)} on database {safe(shown_url(settings.database))}")
        print_table(
            ("TASK", "NEXT FIRE", "SCHEDULE"),
            [
                (
                    ref.name,
                    _next_fire(triggers) or "-",
                    "; ".join(describe_trigger(row.spec) for row in triggers),
                )
                for ref, triggers in tasks
            ],
            empty="There are no tasks.",
        )
        for problem in running.problems:
            complain(problem)
        say(f"API, health and metrics on http://{running.api}")
        say(f"{settings.slots} task processes, {settings.async_slots} async slots; Ctrl-C ends them")
        if reloads:
            say("changed files are taken over as they are saved")

    return announce


def _next_fire(triggers: list[TriggerRow]) -> str | None:
    return instant(triggers[0].next_us) if triggers else None


async def _until_in_force(running: Running) -> None:
    """Wait until the owner has put the newest triggers in force, but not for ever."""
    clock = running.clock
    end_us = clock.boot_us() + _IN_FORCE_US_MAX
    while clock.boot_us() < end_us:
        rows = await running.store.get_tasks(running.tasks)
        if all(row.scheduled_version == row.version for row in rows.values()):
            return
        await clock.sleep_until_us(clock.boot_us() + _POLL_US)
