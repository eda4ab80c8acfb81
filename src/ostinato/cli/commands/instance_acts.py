"""``ostinato instance retry`` and ``cancel``: run what has ended again, or end what has not."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.cli.options import DatabaseOption, JsonOption, settings_of, wants_json

app = typer.Typer()

IdsArgument = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of the instances.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the history.")]


@app.command()
def retry(
    instance_ids: IdsArgument,
    context: typer.Context,
    *,
    latest: Annotated[
        bool, typer.Option("--latest", help="With the newest version of the task, not the pinned one.")
    ] = False,
    payload: Annotated[str | None, typer.Option("--payload", metavar="JSON", help="Another payload.")] = None,
    reason: ReasonOption = "",
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run ended instances again, as a new generation."""
    from ostinato.cli.answers import show_answers
    from ostinato.cli.session import in_session
    from ostinato.control.replay import replay

    answers = in_session(
        settings_of(context, database=database),
        lambda session: replay(
            session.store,
            instance_ids,
            asker=session.asker,
            reason=reason,
            latest=latest,
            payload=None if payload is None else payload.encode("utf-8", "surrogatepass"),
        ),
    )
    show_answers(instance_ids, answers, done="runs again", in_json=wants_json(context, as_json=as_json))


@app.command()
def cancel(
    instance_ids: IdsArgument,
    context: typer.Context,
    *,
    reason: ReasonOption = "",
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """End instances that have not ended: what waits at once, what runs by asking it first."""
    from ostinato.cli.answers import show_answers
    from ostinato.cli.session import in_session
    from ostinato.control.cancel import cancel as cancel_instances

    answers = in_session(
        settings_of(context, database=database),
        lambda session: cancel_instances(session.store, instance_ids, asker=session.asker, reason=reason),
    )
    show_answers(
        instance_ids,
        answers,
        done="is cancelled or asked to end",
        in_json=wants_json(context, as_json=as_json),
    )
