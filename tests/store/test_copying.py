"""Copies of one database into another: what goes along, what stays, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from support.servers import SERVER_KINDS, create_schema, fresh_database

from ostinato.core.definition import TaskRef
from ostinato.core.ids import partition_of
from ostinato.core.instants import HOUR, MINUTE
from ostinato.core.states import Hold, State
from ostinato.errors import ConflictError, OstinatoError, UnavailableError
from ostinato.store.administration import copy_database
from ostinato.store.batches import HoldWaiting, Request, SetTaskFlags, SwitchVersion
from ostinato.store.copying import Copied
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store
from ostinato.store.sqlite.lock_file import LockFile
from ostinato.testing.contracts.store_kit import (
    ALL,
    REF,
    T0,
    ContractClock,
    Owner,
    counts,
    end_attempt,
    history_row,
    make_definition,
    make_instance,
    make_submission,
    make_trigger,
)

#: More than are read at once.
_MANY = 450
#: Another number than the source's, so that every row changes its partition.
_TARGET_PARTITIONS = 7
_OTHER = TaskRef("default", "other")
#: Far behind the time of any server that the test meets.
_KEY_EXPIRES_US = T0 + 100 * 365 * 24 * HOUR


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Store]:
    store = open_store_from_url(url, clock=ContractClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def source(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'source.db'}"


@pytest.fixture(params=["sqlite", *SERVER_KINDS])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'target.db'}"
        return
    with fresh_database(request.param, has_schema=False) as database:
        engine = database.engine()
        with engine.begin() as connection:
            create_schema(connection, partition_count=_TARGET_PARTITIONS)
        engine.dispose()
        yield database.url


async def _fill(url: str) -> None:
    """Two tasks in two versions, with instances in every state but ``running``."""
    async with _opened(url) as store:
        await store.apply([make_definition(), make_definition(_OTHER.name)], now_us=T0)
        await store.apply([make_definition(command="false")], now_us=T0, origin="document")
        owner = await Owner.of(store)
        first = make_submission(1, key="live")
        first.key_expires_us = _KEY_EXPIRES_US
        await store.submit([first, *(make_submission(number) for number in range(2, _MANY + 2))])
        await owner.finish(make_instance("ended"))
        (running,) = await owner.run(make_instance("again", result=None))
        partition = partition_of(REF.namespace, REF.name, partition_count=store.partition_count)
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(running)]
        batch.history = [
            history_row(running, sentence=f"line {number}", attempt=1) for number in range(_MANY)
        ]
        batch.holds = [
            HoldWaiting(
                instance_id="i000002",
                partition=3,
                expected_state=State.PENDING,
                expected_attempt=0,
                hold=Hold.PAUSED,
                reason="the task is paused",
            )
        ]
        trigger = make_trigger("t1", partition=partition, next_us=T0 + HOUR)
        trigger = msgspec.structs.replace(trigger, last_us=T0 - HOUR)
        batch.switches = [SwitchVersion(REF.namespace, REF.name, partition, version=2, triggers=[trigger])]
        batch.flags = [SetTaskFlags(REF.namespace, REF.name, partition, paused=True)]
        report = await store.commit(batch)
        assert (report.unmatched, report.rejected) == (frozenset(), {})
        await store.add_requests(
            [Request(id="r", partition=3, kind="cancel", namespace="default", created_us=T0)]
        )
        await store.remove_node("node-1")


async def _copy(source: str, target: str, *, leave_running: bool = False) -> Copied:
    return await copy_database(source, target, leave_running=leave_running, clock=ContractClock())


async def test_what_is_still_to_be_done_goes_along(source: str, target: str) -> None:
    await _fill(source)
    copied = await _copy(source, target)
    assert (copied.tasks, copied.definitions, copied.triggers, copied.keys) == (2, 3, 1, 1)
    assert (copied.instances, copied.history) == (_MANY + 2, _MANY)
    assert (copied.left_running, copied.left_finished, copied.left_requests) == (0, 1, 1)
    async with _opened(source) as before, _opened(target) as after:
        for ref in (REF, _OTHER):
            old = (await before.get_tasks([ref]))[ref]
            new = (await after.get_tasks([ref]))[ref]
            assert new.definition == old.definition
            assert (new.version, new.scheduled_version, new.paused, new.disabled, new.origin) == (
                old.version,
                old.scheduled_version,
                old.paused,
                old.disabled,
                old.origin,
            )
            assert new.partition == partition_of(
                ref.namespace, ref.name, partition_count=after.partition_count
            )
        assert await after.load_definitions([(REF, 1)]) == await before.load_definitions([(REF, 1)])
        (trigger,) = await after.triggers_of(REF)
        assert (trigger.next_us, trigger.last_us) == (T0 + HOUR, T0 - HOUR)
        assert await counts(after) == {"pending": _MANY + 1, "retry_waiting": 1}
        ids = ["i000001", "i000002", "again"]
        old_rows, new_rows = await before.get_instances(ids), await after.get_instances(ids)
        for row in (*old_rows.values(), *new_rows.values()):
            row.partition = 0
        assert new_rows == old_rows
        assert new_rows["i000002"].hold is Hold.PAUSED
        sentences = [row.sentence for row in await after.history("again", limit=1000)]
        assert sentences == [f"line {number}" for number in range(_MANY)]


async def test_a_copied_database_goes_on_where_the_other_stopped(source: str, target: str) -> None:
    await _fill(source)
    await _copy(source, target)
    async with _opened(target) as store:
        again = make_submission("new", key="live")
        again.instance.partition = 0
        (receipt,) = await store.submit([again])
        assert (receipt.instance_id, receipt.created) == ("i000001", False)
        owned = range(store.partition_count)
        owner = await Owner.of(store)
        assert len(owner.proofs) == len(owned)
        found = await store.find_work(list(owned), now_us=T0, limit=1000)
        assert len(found.instances) == _MANY
        assert found.next_due_us == T0 + MINUTE
        partition = partition_of(REF.namespace, REF.name, partition_count=store.partition_count)
        batch = owner.batch()
        batch.flags = [SetTaskFlags(REF.namespace, REF.name, partition, paused=False)]
        await store.commit(batch)
        due = await store.find_due_triggers(list(owned), now_us=T0 + 2 * HOUR, limit=9)
        assert [trigger.id for trigger in due.triggers] == ["t1"]


async def test_a_server_is_copied_back_into_a_file(source: str, target: str, tmp_path: Path) -> None:
    await _fill(source)
    there = await _copy(source, target)
    back = await _copy(target, f"sqlite:///{tmp_path / 'back.db'}")
    assert (back.tasks, back.definitions, back.triggers, back.instances, back.history, back.keys) == (
        there.tasks,
        there.definitions,
        there.triggers,
        there.instances,
        there.history,
        there.keys,
    )
    async with _opened(source) as first, _opened(f"sqlite:///{tmp_path / 'back.db'}") as last:
        assert await last.triggers_of(REF) == await first.triggers_of(REF)
        assert await last.get_tasks([REF]) == await first.get_tasks([REF])


async def test_a_dead_key_stays_behind(source: str, target: str) -> None:
    await _fill(source)
    clock = ContractClock()
    clock.now_us = _KEY_EXPIRES_US
    copied = await copy_database(source, target, leave_running=False, clock=clock)
    assert copied.keys == 0


async def test_a_target_that_holds_anything_is_refused(source: str, target: str) -> None:
    await _fill(source)
    await _copy(source, target)
    with pytest.raises(ConflictError, match="is not empty") as caught:
        await _copy(source, target)
    assert caught.value.code == "COPY_REFUSED"
    async with _opened(target) as store:
        assert await counts(store) == {"pending": _MANY + 1, "retry_waiting": 1}


async def test_a_database_is_not_copied_into_itself(source: str, tmp_path: Path) -> None:
    await _fill(source)
    (tmp_path / "link.db").symlink_to(tmp_path / "source.db")
    for url in (source, f"sqlite:///{tmp_path / 'link.db'}"):
        with pytest.raises(ConflictError, match="the same database") as caught:
            await _copy(source, url)
        assert caught.value.code == "COPY_REFUSED"


@pytest.mark.parametrize("url", ["oracle://u:s3cret@h/d", "mysql://u:s3cret@h/d?a=b", "memory:"])
async def test_a_wrong_url_is_named_by_its_side(source: str, url: str) -> None:
    for pair, field in (((source, url), "target"), ((url, source), "source")):
        with pytest.raises(OstinatoError) as caught:
            await _copy(*pair)
        assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", field)
        assert "s3cret" not in str(caught.value)


async def test_running_instances_are_refused_or_left(source: str, target: str) -> None:
    await _fill(source)
    async with _opened(source) as store:
        owner = await Owner.of(store)
        await owner.run(make_instance("runs"))
        await store.remove_node("node-1")
    with pytest.raises(ConflictError, match="1 instances run") as caught:
        await _copy(source, target)
    assert caught.value.code == "COPY_REFUSED"
    assert "--leave-running" in caught.value.hint
    copied = await _copy(source, target, leave_running=True)
    assert (copied.left_running, copied.instances) == (1, _MANY + 2)
    async with _opened(target) as store:
        assert await store.get_instances(["runs"]) == {}


async def test_a_copy_that_fails_leaves_nothing_behind(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.store import copying

    async def fail(*_: object, **__: object) -> int:
        raise RuntimeError("the machine went away")

    await _fill(source)
    monkeypatch.setattr(copying, "_copy_history", fail)
    with pytest.raises(RuntimeError):
        await _copy(source, target)
    monkeypatch.undo()
    assert (await _copy(source, target)).instances == _MANY + 2


async def test_no_scheduler_may_run_on_the_source(source: str, target: str) -> None:
    await _fill(source)
    async with _opened(source) as store:
        await Owner.of(store)
        with pytest.raises(ConflictError) as caught:
            await _copy(source, target)
    assert (caught.value.code, caught.value.field) == ("NODE_ALREADY_RUNNING", "source")


async def test_no_scheduler_may_run_on_the_target(source: str, target: str) -> None:
    await _fill(source)
    async with _opened(target) as store:
        owner = await Owner.of(store)
        assert owner.proofs
        if store.capabilities.many_nodes:
            async with _renewing(store):
                caught = await _refused(source, target)
        else:
            caught = await _refused(source, target)
    assert (caught.code, caught.field) == ("NODE_ALREADY_RUNNING", "target")


async def test_of_two_copies_at_once_one_is_told_of_the_other_and_never_of_a_scheduler(
    source: str, target: str
) -> None:
    await _fill(source)
    both = await asyncio.gather(_copy(source, target), _copy(source, target), return_exceptions=True)
    copied = [outcome for outcome in both if not isinstance(outcome, BaseException)]
    (refused,) = [outcome for outcome in both if isinstance(outcome, OstinatoError)]
    assert [each.instances for each in copied] == [_MANY + 2]
    if refused.code != "COPY_REFUSED":
        assert (refused.code, refused.field) == ("DATABASE_UNAVAILABLE", "source")
        assert "a copy of " in refused.message
        assert "is under way" in refused.message


async def test_a_scheduler_that_starts_during_a_copy_is_told_of_the_copy(tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    async with _opened(f"sqlite:///{path}") as store:
        lock = LockFile(str(path), purpose="copy")
        lock.acquire()
        with pytest.raises(UnavailableError, match=f"a copy of {path} is under way, by process") as caught:
            await Owner.of(store)
        assert caught.value.code == "DATABASE_UNAVAILABLE"
        lock.release()
        await Owner.of(store)


async def _refused(source: str, target: str) -> OstinatoError:
    with pytest.raises(ConflictError) as caught:
        await _copy(source, target)
    return caught.value


@asynccontextmanager
async def _renewing(store: Store) -> AsyncIterator[None]:
    """The node renews itself as it does once a second, only faster."""

    async def renew() -> None:
        while True:
            assert await store.renew_node("node-1")
            await asyncio.sleep(0.1)

    life = asyncio.create_task(renew())
    try:
        yield
    finally:
        life.cancel()
        await asyncio.wait([life])


async def test_a_source_that_is_not_there_is_not_made(tmp_path: Path, target: str) -> None:
    path = tmp_path / "mistyped.db"
    with pytest.raises(OstinatoError) as caught:
        await _copy(f"sqlite:///{path}", target)
    assert (caught.value.code, caught.value.field) == ("DATABASE_UNAVAILABLE", "source")
    assert not path.exists()


@pytest.mark.parametrize("kind", SERVER_KINDS)
async def test_a_target_without_a_schema_is_refused(source: str, kind: str) -> None:
    await _fill(source)
    with fresh_database(kind, has_schema=False) as database, pytest.raises(OstinatoError) as caught:
        await _copy(source, database.url)
    assert (caught.value.code, caught.value.field) == ("SCHEMA_VERSION", "target")
    assert "ostinato db upgrade" in caught.value.hint


async def test_all_owned_partitions_of_a_copy_are_free(source: str, target: str) -> None:
    await _fill(source)
    await _copy(source, target)
    async with _opened(target) as store:
        owners = await store.partition_owners()
        assert {proof.owner for proof in owners} == {""}
        assert len(owners) == (len(ALL) if target.startswith("sqlite") else _TARGET_PARTITIONS)
