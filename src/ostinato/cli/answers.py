"""The owners' answers to requests, as a command shows them."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.cli.output import print_json, safe, say
from ostinato.control.requests import require_ok
from ostinato.store.batches import RequestAnswer


def show_answers(
    instance_ids: Sequence[str], answers: Sequence[RequestAnswer], *, done: str, in_json: bool
) -> None:
    """Show each answer; then end as the first refusal demands, if there is one."""
    if in_json:
        print_json(
            [
                {"instance_id": instance_id, "code": answer.code, "message": answer.message}
                for instance_id, answer in zip(instance_ids, answers, strict=True)
            ]
        )
    else:
        for instance_id, answer in zip(instance_ids, answers, strict=True):
            if answer.code == "OK":
                say(f"{safe(instance_id)} {done}")
    for answer in answers:
        require_ok(answer)
