"""Celery's tasks, settings and client, for both of its brokers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery, Task
from celery.worker.request import Request
from recording import count_completion, record_start

_URL = os.environ["BENCH_URL"]
_QUEUE = os.environ["BENCH_QUEUE"]

app = Celery("bench", broker=_URL)
app.conf.update(
    task_default_queue=_QUEUE,
    # Persistent is the default, said here because it is what is compared.
    task_default_delivery_mode="persistent",
    task_acks_late=True,
    task_ignore_result=True,
    # "Optimizing": many short tasks want a large multiplier.
    worker_prefetch_multiplier=128,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True} if _URL.startswith("amqp") else {},
)


class CountedRequest(Request):
    """Counts what has been acknowledged, which with late acknowledgement is what is done."""

    def acknowledge(self) -> None:
        super().acknowledge()
        count_completion()


class CountedTask(Task):
    Request = "celery_app:CountedRequest"


@app.task(base=CountedTask, name="noop")
def noop() -> None:
    return None


@app.task(base=CountedTask, name="stamped")
def stamped(stamp: int) -> None:
    record_start(stamp)


class CeleryClient:
    """One connection and one producer for everything."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    async def submit(self, count: int) -> None:
        for _ in range(count):
            noop.apply_async(producer=self._producer)

    async def submit_stamped(self, stamps: list[int]) -> None:
        for stamp in stamps:
            stamped.apply_async((stamp,), producer=self._producer)


@asynccontextmanager
async def client() -> AsyncIterator[CeleryClient]:
    with app.producer_or_acquire() as producer:
        yield CeleryClient(producer)


def install() -> None:
    """The queue is declared by the first submission."""
