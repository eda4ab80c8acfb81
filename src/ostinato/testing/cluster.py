"""The cluster of a test, as users have it: the real node and worker on virtual time, from plain code."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any, Self, TypeAlias, overload

from ostinato.control.submit import task_missing
from ostinato.core.definition import TaskRef
from ostinato.core.instants import DURATION_MAX_US, from_datetime, parse_duration, to_datetime
from ostinato.errors import UserError
from ostinato.sdk.app import App
from ostinato.sdk.handle import Handle
from ostinato.sdk.retry import Duration
from ostinato.sdk.submitting import AnyTask
from ostinato.sdk.task import DeclaredTask
from ostinato.testing.client import WITHIN_US, InlineClient, InlineGateway
from ostinato.testing.driver import Driver
from ostinato.testing.engine import Engine
from ostinato.testing.instance import Instance
from ostinato.testing.real_sleep import guarded_sleep
from ostinato.testing.script import FailWith, Script
from ostinato.testing.virtual_clock import START_US

#: An instance by its handle or its id, or as it once stood.
AnyInstance: TypeAlias = Handle[Any] | Instance | str


class Cluster:
    """Runs the tasks of `apps` in the calling test until it is closed; a context manager.

    What goes through the apps meanwhile goes to this cluster. `start` is an aware datetime: where virtual
    time begins, and the zone in which instants are told. `seed` decides all that is left to chance: jitter,
    ids, the order of instances that are due at the same instant. Whatever lets time pass raises
    ``INVALID_VALUE`` if meanwhile a task did what a test cannot run. Since 0.1.
    """

    def __init__(self, *apps: App, start: datetime | None = None, seed: int = 0) -> None:
        """Raises ``INVALID_INSTANT`` for a naive `start`, ``INVALID_VALUE`` for what is no app, and what the
        apps' definitions are refused for.
        """
        for app in apps:
            _require_app(app)
        start = to_datetime(START_US) if start is None else start
        start_us = from_datetime(start, field="start")
        self._zone = start.tzinfo
        self._driver = Driver()
        self._script = Script(self._driver)
        rng = Random(seed)
        self._engine = Engine(apps, loop=self._driver.loop, start_us=start_us, rng=rng, script=self._script)
        self._stack = ExitStack()
        with ExitStack() as opened:
            opened.callback(self._driver.close)
            opened.callback(self._driver.close_with, self._engine.stop)
            opened.enter_context(guarded_sleep())
            self._driver.run(self._engine.start)
            for app in apps:
                gateway = InlineGateway(
                    self._engine.store,
                    clock=self._engine.asking_clock,
                    rng=rng,
                    by=app.name,
                    script=self._script,
                )
                client = InlineClient(gateway, driver=self._driver, engine=self._engine, script=self._script)
                opened.callback(app.use_client, app.use_client(client))
            self._stack = opened.pop_all()

    def close(self) -> None:
        """End everything; the apps go where they went before. Idempotent."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        self.close()

    # ── what attempts do ──────────────────────────────────────────────────────────────────────────────

    def fail(
        self,
        task: AnyTask,
        failure: FailWith,
        *,
        attempts: Collection[int] | None = None,
        retry_after: Duration | None = None,
    ) -> None:
        """Let attempts of a task end with a failure; its function is not called in them.

        `failure` is an exception or its class, a failure code (``"WORKER_LOST"``: the worker was killed), or
        an HTTP status. `attempts` are the numbers of attempts, None means all of them. `retry_after`, a
        duration, is what a status or code asks to wait. Raises ``TASK_NOT_FOUND`` and ``INVALID_VALUE``.
        """
        after_us = None if retry_after is None else parse_duration(retry_after, field="retry_after")
        self._script.fail(self._ref(task), failure, attempts=attempts, retry_after_us=after_us)

    def hang(self, task: AnyTask, *, attempts: Collection[int] | None = None) -> None:
        """Let attempts of a task go on until its time-out, its heartbeat time-out or a cancel ends them."""
        self._script.hang(self._ref(task), attempts=attempts)

    def heal(self, task: AnyTask) -> None:
        """Take back every `fail` and `hang` of a task."""
        self._script.heal(self._ref(task))

    def stub(self, task: AnyTask, value: object) -> None:
        """Let a task result in `value` instead of running; a function is called with the payload by name."""
        self._script.stub(self._ref(task), value)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> datetime:
        """Virtual time."""
        return to_datetime(self._engine.clock.wall_us()).astimezone(self._zone)

    def advance(self, duration: Duration) -> None:
        """Let time pass; what is due by then has happened, at the last instant too."""
        duration_us = parse_duration(duration)
        self._driver.run(lambda: self._engine.advance(duration_us))

    async def advance_async(self, duration: Duration) -> None:
        """As `advance`."""
        duration_us = parse_duration(duration)
        await self._driver.run_async(lambda: self._engine.advance(duration_us))

    def advance_to(self, moment: datetime) -> None:
        """As `advance`, to an aware datetime. Raises ``INVALID_INSTANT`` for one that is past or naive."""
        duration_us = self._until(moment)
        self._driver.run(lambda: self._engine.advance(duration_us))

    async def advance_to_async(self, moment: datetime) -> None:
        """As `advance_to`."""
        duration_us = self._until(moment)
        await self._driver.run_async(lambda: self._engine.advance(duration_us))

    @overload
    def finish(self, instance: AnyInstance, *, within: Duration | None = None) -> Instance: ...

    @overload
    def finish(self, *, within: Duration | None = None) -> list[Instance]: ...

    def finish(
        self, instance: AnyInstance | None = None, *, within: Duration | None = None
    ) -> Instance | list[Instance]:
        """Let time pass until `instance` has ended, and return it; without one until all have ended.

        Time jumps from one thing that is due to the next. Raises ``NotEnded``, an ``AssertionError`` with the
        story, after `within`, 30 days unless said otherwise.
        """
        within_us = WITHIN_US if within is None else parse_duration(within, field="within")
        identity = None if instance is None else _id(instance)
        self._driver.run(lambda: self._engine.until_ended(identity, within_us=within_us))
        return self.instances() if identity is None else self.instance(identity)

    @overload
    async def finish_async(self, instance: AnyInstance, *, within: Duration | None = None) -> Instance: ...

    @overload
    async def finish_async(self, *, within: Duration | None = None) -> list[Instance]: ...

    async def finish_async(
        self, instance: AnyInstance | None = None, *, within: Duration | None = None
    ) -> Instance | list[Instance]:
        """As `finish`."""
        within_us = WITHIN_US if within is None else parse_duration(within, field="within")
        identity = None if instance is None else _id(instance)
        await self._driver.run_async(lambda: self._engine.until_ended(identity, within_us=within_us))
        return self.instances() if identity is None else self.instance(identity)

    # ── instances ─────────────────────────────────────────────────────────────────────────────────────

    def instance(self, instance: AnyInstance) -> Instance:
        """The instance as it stands now. Raises ``INSTANCE_NOT_FOUND``."""
        identity = _id(instance)
        return self._driver.run(lambda: self._engine.look(identity, zone=self._zone))

    def instances(self, task: AnyTask | None = None) -> list[Instance]:
        """Every instance, or those of a task, as they stand now, in the order of their creation."""
        ref = None if task is None else self._ref(task)
        return self._driver.run(lambda: self._engine.look_at_all(ref, zone=self._zone))

    def replay(self, instance: AnyInstance, *, latest: bool = False, force: bool = False) -> None:
        """Run an ended instance again, as a new generation; after a success only with `force`.

        It pins the version of the task that it had, or the newest with `latest`. Raises
        ``INSTANCE_NOT_TERMINAL``, ``INSTANCE_SUCCEEDED``, ``INSTANCE_NOT_FOUND``.
        """
        identity = _id(instance)
        self._driver.run(lambda: self._engine.replay(identity, latest=latest, force=force))

    def pause(self, task: AnyTask) -> None:
        """Stop the task's fires and new attempts, until `resume`."""
        ref = self._ref(task)
        self._driver.run(lambda: self._engine.set_flag(ref, "pause"))

    def resume(self, task: AnyTask) -> None:
        """Undo `pause`; what was missed is not fired."""
        ref = self._ref(task)
        self._driver.run(lambda: self._engine.set_flag(ref, "resume"))

    def _ref(self, task: AnyTask) -> TaskRef:
        known = [definition.ref for definition in self._engine.definitions()]
        if isinstance(task, DeclaredTask):
            if task.ref in known:
                return task.ref
            missing = task_missing(task.ref, [ref.name for ref in known])
            names = ", ".join(app.name for app in self._engine.apps) or "no app"
            missing.hint = f"this cluster runs {names}; give it the app of that task too: Cluster(app, other)"
            raise missing
        if not isinstance(task, str):
            raise UserError(
                "INVALID_VALUE",
                f"{task!r} is no task",
                field="task",
                hint="give what @app.task or app.shell has made, or its name",
            )
        found = [ref for ref in known if ref.name == task]
        if not found:
            ref = TaskRef(self._engine.apps[0].namespace if self._engine.apps else "default", task)
            raise task_missing(ref, [ref.name for ref in known])
        return found[0]

    def _until(self, moment: datetime) -> int:
        until_us = from_datetime(moment, field="moment") - self._engine.clock.wall_us()
        if until_us < 0:
            raise UserError(
                "INVALID_INSTANT",
                f"{moment.isoformat()} is past; it is {self.now.isoformat()}",
                field="moment",
            )
        if until_us > DURATION_MAX_US:
            raise UserError(
                "INVALID_INSTANT",
                f"{moment.isoformat()} is more than 100 years away; it is {self.now.isoformat()}",
                field="moment",
            )
        return until_us


def _require_app(app: object) -> None:
    if isinstance(app, App):
        return
    hint = "import the app and give it itself: from shop import app"
    raise UserError("INVALID_VALUE", f"{app!r} is no App", field="apps", hint=hint)


def _id(instance: AnyInstance) -> str:
    if isinstance(instance, str):
        return instance
    if isinstance(instance, Handle | Instance):
        return instance.id
    hint = "give the handle that submit returned, or an id"
    if isinstance(instance, DeclaredTask):
        hint = (
            f"submit it and wait for that: finish({instance.name}.submit()); finish() waits for all instances"
        )
    raise UserError("INVALID_VALUE", f"{instance!r} is no instance", field="instance", hint=hint)
