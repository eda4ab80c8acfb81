"""What a hint says of new instances, and what it leaves out."""

from __future__ import annotations

import pytest

from ostinato.core.states import Hold, State
from ostinato.store.batches import Submission, SubmitReceipt
from ostinato.store.hints import (
    HINTED_COUNT_MAX,
    Hints,
    decode_hint,
    encode_hint,
    is_plain,
    named,
    named_by,
)
from ostinato.testing.contracts.store_kit import T0, make_instance

_PLAIN = make_instance(1, task="ü'\\", due_us=T0, created_us=T0, expires_us=T0 + 1, payload=b"1")


def test_a_hint_says_all_but_the_payload() -> None:
    text = encode_hint([_PLAIN, make_instance(2)], bytes_max=1_000)
    assert decode_hint(text) == [named(_PLAIN), named(make_instance(2))]
    assert (named(_PLAIN).payload, named(_PLAIN).expires_us) == (b"", T0 + 1)


def test_a_hint_that_would_be_too_long_names_nothing() -> None:
    length = len(encode_hint([_PLAIN], bytes_max=1_000).encode())
    assert encode_hint([_PLAIN], bytes_max=length)
    assert encode_hint([_PLAIN], bytes_max=length - 1) == ""


@pytest.mark.parametrize("text", ["", "look", "[1]", '[["a"]]'])
def test_a_hint_of_another_version_names_nothing(text: str) -> None:
    assert decode_hint(text) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"due_us": T0 + 1},
        {"hold": Hold.OVERLAP},
        {"state": State.RETRY_WAITING},
        {"fire_us": T0, "fire_trigger": "t"},
    ],
)
def test_only_what_is_due_at_once_and_like_any_other_is_plain(fields: dict[str, object]) -> None:
    plain: dict[str, object] = {"due_us": T0, "created_us": T0}
    assert is_plain(make_instance(1, **plain))
    assert not is_plain(make_instance(1, **plain | fields))


def test_beyond_a_few_instances_are_left_to_the_next_look() -> None:
    hints = Hints()
    for number in range(HINTED_COUNT_MAX + 5):
        hints.add([make_instance(number)])
    assert [row.id for row in hints.take()] == [make_instance(n).id for n in range(HINTED_COUNT_MAX)]
    assert hints.take() == []


def test_an_instance_that_was_submitted_again_is_named_once() -> None:
    hints = Hints()
    hints.add([_PLAIN])
    hints.add([make_instance(2), _PLAIN])
    assert [row.id for row in hints.take()] == [_PLAIN.id, make_instance(2).id]
    assert hints.take() == []


def test_a_submission_that_was_made_before_names_nothing() -> None:
    """Its instance may be due at another time, before which it is not to start (I4)."""
    submission = Submission(instance=_PLAIN)
    assert named_by(submission, SubmitReceipt(_PLAIN.id, created=True)) == [named(_PLAIN)]
    assert named_by(submission, SubmitReceipt(_PLAIN.id, created=False)) == []
    assert named_by(submission, None) == []
    later = Submission(instance=make_instance(2, due_us=T0 + 1, created_us=T0))
    assert named_by(later, SubmitReceipt("i000002", created=True)) == []
