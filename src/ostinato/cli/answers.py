"""The owners' answers to requests, as a command shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ostinato.cli.output import complain, print_json, safe, say
from ostinato.control.requests import refusal_of
from ostinato.control.shapes.answers import answer_shape
from ostinato.store.batches import RequestAnswer


def show_answers(
    instance_ids: Sequence[str],
    answers: Sequence[RequestAnswer],
    *,
    done: Callable[[RequestAnswer], str],
    in_json: bool,
) -> None:
    """Show each answer, `done` in words; then end as the first refusal demands, if there is one."""
    if in_json:
        shapes = [answer_shape(*pair) for pair in zip(instance_ids, answers, strict=True)]
        print_json(msgspec.to_builtins(shapes))
    else:
        for instance_id, answer in zip(instance_ids, answers, strict=True):
            if answer.code == "OK":
                say(f"{safe(instance_id)} {safe(done(answer))}")
    refused = [refusal_of(answer) for answer in answers if answer.code != "OK"]
    for error in refused[1:] if not in_json else ():
        complain(f"{error.code}: {error}")
    if refused:
        raise refused[0]
