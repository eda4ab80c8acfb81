"""Who may open a stream: the checks that a worker's greeting and a guardian's have in common."""

from __future__ import annotations

import hmac

from ostinato.control.names import validate_label_value
from ostinato.errors import UserError
from ostinato.wire.messages import PROTOCOL_VERSION, GuardianHello, Hello


def check_greeting(hello: Hello | GuardianHello, *, join_token: str) -> None:
    """Raise ``PROTOCOL_MISMATCH``, ``UNKNOWN_TOKEN`` or ``INVALID_VALUE``, as the other side is told."""
    if hello.protocol != PROTOCOL_VERSION:
        newer = "worker" if hello.protocol > PROTOCOL_VERSION else "scheduler"
        raise UserError(
            "PROTOCOL_MISMATCH",
            f"worker speaks protocol {hello.protocol}, scheduler {PROTOCOL_VERSION}; "
            f"the {newer} is newer, update the other",
            subject=hello.worker_name,
        )
    if join_token and not hmac.compare_digest(_bytes(join_token), _bytes(hello.token)):
        what = "the worker's token is not the scheduler's" if hello.token else "the worker brings no token"
        raise UserError("UNKNOWN_TOKEN", what, subject=hello.worker_name)
    validate_label_value(hello.worker_id, field="worker_id")
    # It is stored with every attempt; a worker in another language may not have looked.
    validate_label_value(hello.worker_name, field="worker_name")


def _bytes(token: str) -> bytes:
    return token.encode("utf-8", "surrogatepass")
