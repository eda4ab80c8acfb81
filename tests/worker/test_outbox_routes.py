"""To whom outcomes go: the owner of their partition; everybody while it is unknown; again when it changes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ostinato.core.model import Outcome
from ostinato.wire.messages import Draining, Outcomes
from ostinato.worker.mail import Mail
from ostinato.worker.outbox import Outbox
from ostinato.worker.spool_file import SpoolFile, read_spool
from tests.worker.one_stream import mail_of
from tests.worker.spool_stories import kept, outcome, write


def of(attempt_id: str, partition: int | None) -> Outcome:
    ended = outcome(attempt_id)
    ended.partition = partition
    return ended


def sent(mail: Mail) -> list[str]:
    """Attempt ids of the outcomes that leave now."""
    found: list[str] = []
    while mail.has_mail.is_set():
        for message in mail.take():
            if isinstance(message, Outcomes):
                found += [item.attempt_id for item in message.items]
    return found


def pass_heartbeats(mail: Mail, count: int = 4) -> None:
    for _ in range(count):
        mail.count_heartbeat()


def test_while_nobody_is_known_to_own_it_everybody_is_told_and_any_acknowledgement_counts() -> None:
    outbox = Outbox()
    mails = [mail_of(outbox, stream) for stream in (1, 2)]
    outbox.add_outcomes([of("a", 7), of("b", None)])
    assert [sent(mail) for mail in mails] == [["a", "b"], ["a", "b"]]
    outbox.acknowledge(1, [], unowned=["a", "b"])
    outbox.acknowledge(2, ["a", "b"])
    assert outbox.all_acknowledged.is_set()
    for mail in mails:
        pass_heartbeats(mail)
        assert sent(mail) == []


def test_the_owner_alone_is_told() -> None:
    outbox = Outbox()
    mails = [mail_of(outbox, stream) for stream in (1, 2)]
    outbox.owned(1, [7])
    outbox.owned(2, [8])
    outbox.add_outcomes([of("a", 7), of("b", 8)])
    assert [sent(mail) for mail in mails] == [["a"], ["b"]]


def test_the_newest_word_on_who_owns_a_partition_counts_and_the_new_owner_is_told_again() -> None:
    outbox = Outbox()
    mails = [mail_of(outbox, stream) for stream in (1, 2)]
    outbox.owned(1, [7])
    outbox.add_outcomes([of("a", 7)])
    assert [sent(mail) for mail in mails] == [["a"], []]
    outbox.owned(2, [7])
    assert [sent(mail) for mail in mails] == [[], ["a"]]
    outbox.add_outcomes([of("b", 7)])
    assert [sent(mail) for mail in mails] == [[], ["b"]]
    outbox.owned(2, [])
    # The first one has said so all the while, and was asked about the first outcome already.
    assert [sent(mail) for mail in mails] == [["b"], []]


def test_a_node_that_refused_an_outcome_is_told_again_once_it_owns_the_partition() -> None:
    outbox = Outbox()
    mail = mail_of(outbox)
    outbox.add_outcomes([of("a", 7)])
    assert sent(mail) == ["a"]
    outbox.acknowledge(1, [], unowned=["a"])
    pass_heartbeats(mail)
    assert sent(mail) == []
    outbox.owned(1, [7])
    assert sent(mail) == ["a"]


def test_an_owner_that_does_not_answer_or_says_that_it_is_none_is_told_again_some_heartbeats_later() -> None:
    outbox = Outbox()
    mail = mail_of(outbox)
    outbox.owned(1, [7])
    outbox.add_outcomes([of("a", 7)])
    assert sent(mail) == ["a"]
    pass_heartbeats(mail)
    assert sent(mail) == ["a"]
    outbox.acknowledge(1, [], unowned=["a"])
    pass_heartbeats(mail)
    assert sent(mail) == ["a"]


def test_a_stream_that_ends_leaves_its_outcomes_to_the_others_and_to_the_next_one() -> None:
    outbox = Outbox()
    first, second = (mail_of(outbox, stream) for stream in (1, 2))
    outbox.owned(1, [7])
    outbox.add_outcomes([of("a", 7)])
    assert sent(first) == ["a"]
    outbox.close(1)
    outbox.close(1)
    assert sent(second) == ["a"]
    outbox.owned(2, [8])
    assert sent(mail_of(outbox, 3)) == ["a"]


def test_a_new_stream_is_told_what_nobody_else_owns() -> None:
    outbox = Outbox()
    mail_of(outbox, 1)
    outbox.owned(1, [7])
    outbox.add_outcomes([of("a", 7), of("b", 8), of("c", None)])
    assert sent(mail_of(outbox, 2)) == ["b", "c"]


def test_every_stream_hears_of_a_drain_once_also_one_that_comes_later() -> None:
    outbox = Outbox()
    early = mail_of(outbox, 1)
    outbox.announce_drain("SIGTERM")
    late = mail_of(outbox, 2)
    for mail in (early, late):
        assert mail.take() == [Draining("SIGTERM")]
        assert mail.take() == []


async def test_what_a_spool_has_kept_goes_to_the_owner_of_its_partition(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    write(tmp_path, "gone", [of("a", 7), of("b", 8), of("c", None)])
    async with kept(tmp_path) as made:
        second = made.outbox.open(2, dict)
        made.outbox.owned(made.stream, [7])
        made.outbox.owned(2, [8])
        await made.until(lambda: len(made.outbox.unacknowledged) == 3)
        await made.spool.is_safe.wait()
        assert sent(made.mail) == ["a", "c"]
        assert sent(second) == ["b", "c"]
        made.outbox.acknowledge(2, ["b", "c"])
        made.outbox.acknowledge(made.stream, ["a"])
        assert made.outbox.all_acknowledged.is_set()


def test_a_spool_of_an_earlier_version_says_nothing_of_partitions_and_can_be_read(tmp_path: Path) -> None:
    class Before(msgspec.Struct, kw_only=True):
        instance_id: str
        attempt: int
        attempt_id: str
        started_us: int | None
        finished_us: int
        result: bytes | None = None
        failure: None = None
        unstarted_reason: str = ""

    ended = of("a", 7)
    old = Before(**{name: getattr(ended, name) for name in Before.__struct_fields__})
    file = SpoolFile(tmp_path / "old.db")
    file.add([old])  # type: ignore[list-item]  # as that version had it
    file.close()
    assert read_spool(tmp_path / "old.db").outcomes == [of("a", None)]
    # And what this version keeps, that one reads.
    body = msgspec.msgpack.encode([ended])
    assert msgspec.msgpack.decode(body, type=list[Before]) == [old]
