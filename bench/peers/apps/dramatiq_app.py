"""Dramatiq's actors, broker and client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import Middleware
from recording import count_completion, record_start


class Counting(Middleware):
    """Counts what has been acknowledged, which is what is done."""

    def after_ack(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        count_completion()


broker = RabbitmqBroker(url=os.environ["BENCH_URL"], confirm_delivery=True)
broker.add_middleware(Counting())
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=os.environ["BENCH_QUEUE"])
def noop() -> None:
    return None


@dramatiq.actor(queue_name=os.environ["BENCH_QUEUE"])
def stamped(stamp: int) -> None:
    record_start(stamp)


class DramatiqClient:
    async def submit(self, count: int) -> None:
        for _ in range(count):
            noop.send()

    async def submit_stamped(self, stamps: list[int]) -> None:
        for stamp in stamps:
            stamped.send(stamp)


@asynccontextmanager
async def client() -> AsyncIterator[DramatiqClient]:
    yield DramatiqClient()
    broker.close()


def install() -> None:
    """Queues are declared by the first submission."""
