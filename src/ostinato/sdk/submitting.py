"""The half of an app that submits: one task or many, by itself or in the user's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from ostinato.control.names import validate_name
from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import TaskRef
from ostinato.core.payload import encode_payload, not_an_object
from ostinato.errors import UserError, restated
from ostinato.sdk.gateway.connection import Connection
from ostinato.sdk.handle import Handle
from ostinato.sdk.retry import Duration
from ostinato.sdk.submission import NOW, Submission, SubmitOptions
from ostinato.sdk.task import DeclaredTask
from ostinato.store.batches import SubmitReceipt

AnyTask: TypeAlias = DeclaredTask[Any] | str


class Submitting:
    """Submissions of an app. `connection` is the user's own database connection in each of them.

    With one, the instance is written in its open transaction and exists exactly if that commits; without one
    it exists when the call returns.
    """

    namespace: str
    _declared: dict[TaskRef, DeclaredTask[Any]]
    _connection: Connection

    def submit(
        self,
        task: AnyTask,
        payload: Mapping[str, object] | None = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        connection: object | None = None,
    ) -> Handle[Any]:
        """Submit a task by its name or object, with its arguments by name. See `SubmitOptions`.

        Raises ``TASK_NOT_FOUND``, ``TASK_DISABLED``, ``INVALID_PAYLOAD``, ``PAYLOAD_TOO_LARGE``,
        ``KEY_CONFLICT``, ``SCHEDULER_UNREACHABLE``, ``DATABASE_UNAVAILABLE`` and those of wrong options,
        naming the field.

        With `connection` the instance is part of that connection's open transaction, and nothing but that
        connection is used: the task must have been registered, ``app.apply()`` is not called. Raises
        ``INVALID_VALUE`` for a connection that cannot be used, ``DATABASE_UNUSABLE`` and ``SCHEMA_VERSION``
        for its database, and what its driver raises.
        """
        options = SubmitOptions(key=key, delay=delay, at=at, priority=priority)
        request = self._request(task, payload or {}, options=options)
        return self.submit_request(request, decode=self._decoder(task), connection=connection)

    async def submit_async(
        self,
        task: AnyTask,
        payload: Mapping[str, object] | None = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        connection: object | None = None,
    ) -> Handle[Any]:
        """As `submit`."""
        options = SubmitOptions(key=key, delay=delay, at=at, priority=priority)
        request = self._request(task, payload or {}, options=options)
        return await self.submit_request_async(request, decode=self._decoder(task), connection=connection)

    def submit_many(
        self,
        task: AnyTask,
        entries: Sequence[Mapping[str, object] | Submission],
        *,
        connection: object | None = None,
    ) -> list[Handle[Any]]:
        """Submit many instances of one task at once, all or none; handles in the same order.

        An entry is a payload, or a ``Submission`` with options of its own. Errors name ``submissions[n]``.
        With `connection` as `submit`.
        """
        receipts = self._submit(self._requests(task, entries), connection)
        return [self._handle(receipt, self._decoder(task)) for receipt in receipts]

    async def submit_many_async(
        self,
        task: AnyTask,
        entries: Sequence[Mapping[str, object] | Submission],
        *,
        connection: object | None = None,
    ) -> list[Handle[Any]]:
        """As `submit_many`."""
        receipts = await self._submit_async(self._requests(task, entries), connection)
        return [self._handle(receipt, self._decoder(task)) for receipt in receipts]

    def submit_request(
        self,
        request: SubmitRequest,
        *,
        decode: Callable[[bytes], object] | None,
        connection: object | None = None,
    ) -> Handle[Any]:
        """Submit what has been checked and encoded already; what tasks call."""
        return self._handle(self._submit([request], connection)[0], decode)

    async def submit_request_async(
        self,
        request: SubmitRequest,
        *,
        decode: Callable[[bytes], object] | None,
        connection: object | None = None,
    ) -> Handle[Any]:
        """As `submit_request`."""
        return self._handle((await self._submit_async([request], connection))[0], decode)

    def handle(self, instance_id: str) -> Handle[Any]:
        """Handle on an instance that is known by its id; its existence is checked when it is used."""
        return Handle(self._connection.client, instance_id, created=False)

    def _submit(self, requests: Sequence[SubmitRequest], connection: object | None) -> list[SubmitReceipt]:
        if connection is not None:
            return self._connection.submit_within(connection, requests)
        return self._connection.client.call(lambda gateway: self._connection.submit(gateway, requests))

    async def _submit_async(
        self, requests: Sequence[SubmitRequest], connection: object | None
    ) -> list[SubmitReceipt]:
        if connection is not None:
            return await self._connection.submit_within_async(connection, requests)
        return await self._connection.client.call_async(
            lambda gateway: self._connection.submit(gateway, requests)
        )

    def _requests(
        self, task: AnyTask, entries: Sequence[Mapping[str, object] | Submission]
    ) -> list[SubmitRequest]:
        requests: list[SubmitRequest] = []
        for index, entry in enumerate(entries):
            payload, options = (
                (entry.payload, entry.options) if isinstance(entry, Submission) else (entry, NOW)
            )
            try:
                requests.append(self._request(task, payload, options=options))
            except UserError as error:
                field = f"submissions[{index}]" + (f".{error.field}" if error.field else "")
                raise restated(error, field=field) from None
        return requests

    def _request(
        self, task: AnyTask, payload: Mapping[str, object], *, options: SubmitOptions
    ) -> SubmitRequest:
        known = self._declared.get(TaskRef(self.namespace, task)) if isinstance(task, str) else task
        if known is not None:
            return options.request(known.ref, known.encode_object(payload))
        return options.request(self._ref(str(task), field="task"), encode_mapping(payload))

    def _decoder(self, task: AnyTask) -> Callable[[bytes], object] | None:
        known = self._declared.get(TaskRef(self.namespace, task)) if isinstance(task, str) else task
        return None if known is None else known.decoder

    def _handle(self, receipt: SubmitReceipt, decode: Callable[[bytes], object] | None) -> Handle[Any]:
        client = self._connection.client
        return Handle(client, receipt.instance_id, created=receipt.created, decode=decode)

    def _ref(self, name: str, *, field: str = "name") -> TaskRef:
        validate_name(name, field=field)
        return TaskRef(self.namespace, name)


def encode_mapping(payload: Mapping[str, object]) -> bytes:
    """JSON of arguments by name of a task that is not known here. Raises ``INVALID_PAYLOAD``."""
    # What Python hands in need not be what is declared.
    if not isinstance(payload, Mapping):
        raise not_an_object(payload, field="payload")
    return encode_payload(dict(payload))
