"""The join token: what carries it shows it to nobody but the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.core.secret import Secret
from ostinato.scheduler.config import NodeConfig
from ostinato.wire.codec import decode_worker, encode_worker
from ostinato.wire.messages import PROTOCOL_VERSION, GuardianHello, Hello, WorkerMessage
from ostinato.worker.config import WorkerConfig

TOKEN = Secret("open sesame")


@pytest.mark.parametrize(
    "message",
    [
        Hello(protocol=PROTOCOL_VERSION, worker_id="w1", worker_name="worker", token=TOKEN),
        GuardianHello(PROTOCOL_VERSION, "w1", "worker", TOKEN),
    ],
    ids=["worker", "guardian"],
)
def test_a_greeting_carries_the_token_and_neither_end_shows_it(message: WorkerMessage) -> None:
    [received] = [each for frame in encode_worker([message]) for each in decode_worker(frame)]
    assert isinstance(received, Hello | GuardianHello)
    assert received.token == "open sesame"
    assert "sesame" not in repr(message)
    assert "sesame" not in repr(received)


def test_settings_of_node_and_worker_do_not_show_the_token() -> None:
    worker = WorkerConfig(worker_name="w", scheduler="s", capacity={}, data_dir=Path(), token=TOKEN)
    for config in (NodeConfig(join_token=TOKEN), worker):
        assert "sesame" not in repr(config)
        assert "[redacted]" in repr(config)


def test_a_secret_is_a_text_like_any_other_that_does_not_show_itself() -> None:
    assert TOKEN == "open sesame"
    assert f"{TOKEN!r} {Secret()!r}" == "'[redacted]' ''"
    assert TOKEN.encode() == b"open sesame"
