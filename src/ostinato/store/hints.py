"""New instances that a hint of changes has named: what its reader need not look for any more.

A hint says less than the row: no payload, since whoever may connect to a database may hear its hints, and
nothing that a plain submission does not have. It may come late, twice or never. So it decides nothing: who
assigns such an instance names the state that it expects, as always, and is given the payload then.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.store.batches import Submission, SubmitReceipt

#: Instances that one hint names, and that a reader keeps until it is asked for them.
HINTED_COUNT_MAX = 32


class _Named(msgspec.Struct, array_like=True):
    """What a hint says of one."""

    id: str
    namespace: str
    task: str
    task_version: int
    partition: int
    priority: int
    due_us: int
    created_us: int
    expires_us: int | None


_FIELDS = _Named.__struct_fields__
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[_Named]).decode


class Hints:
    """Instances that have been named and not been asked for; beyond a few they are left to the next look.

    A submission that is repeated with its id, as after a lost answer, names its instance again.
    """

    def __init__(self) -> None:
        self._instances: dict[str, Instance] = {}

    def add(self, instances: Sequence[Instance]) -> None:
        """These have been named."""
        for instance in instances:
            if len(self._instances) < HINTED_COUNT_MAX:
                self._instances[instance.id] = instance

    def take(self) -> list[Instance]:
        """Those named since the last call, each once."""
        taken, self._instances = self._instances, {}
        return list(taken.values())


def is_plain(instance: Instance) -> bool:
    """Whether a hint can name it: a submission that is due at once."""
    return (
        instance.state is State.PENDING
        and instance.hold is None
        and instance.fire_us is None
        and instance.attempt == 0
        and instance.due_us <= instance.created_us
    )


def named(instance: Instance | _Named) -> Instance:
    """What a hint says of it."""
    return Instance(state=State.PENDING, payload=b"", **{name: getattr(instance, name) for name in _FIELDS})


def named_by(submission: Submission, receipt: SubmitReceipt | None) -> list[Instance]:
    """What a hint says of a submission: of one that was made before it does not know what became of it."""
    is_new = receipt is not None and receipt.created
    return [named(submission.instance)] if is_new and is_plain(submission.instance) else []


def encode_hint(instances: Sequence[Instance], *, bytes_max: int) -> str:
    """Text that names `instances`; empty where it would be longer than `bytes_max`."""
    rows = [_Named(*(getattr(instance, name) for name in _FIELDS)) for instance in instances]
    text = _encode(rows)
    return text.decode() if len(text) <= bytes_max else ""


def decode_hint(text: str) -> list[Instance]:
    """Instances that `text` names; none where it is of another version than this."""
    try:
        return [named(row) for row in _decode(text)]
    except msgspec.DecodeError:
        return []
