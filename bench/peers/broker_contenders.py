"""Peers over Redis and RabbitMQ. Brokers tell nobody what is done, so the workers count."""

from __future__ import annotations

import sys
import uuid
from typing import ClassVar

from kit.servers import Servers

from peers.interface import CORES, Contender, Load

_DRAMATIQ_THREADS = 8


class _OverBroker(Contender):
    """A queue of its own for each run."""

    def own_environment(self) -> dict[str, str]:
        url = self.servers.redis_url() if self.server == "redis" else self.servers.rabbitmq_url()
        return {"BENCH_URL": url, "BENCH_QUEUE": f"bench-{uuid.uuid1().hex}"}

    def completed(self) -> int:
        return self.counted()


class _Celery(_OverBroker):
    modules: ClassVar[tuple[str, ...]] = ("celery",)
    app = "celery_app"
    settings = (
        f"prefork of {CORES}, late acknowledgement, prefetch 128 a process, results not stored, no gossip,"
        " mingle or heartbeat; plain functions, having no async def; counts once the acknowledgement is sent"
    )

    def worker_command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "celery", "--app", "celery_app", "worker", "--pool", "prefork"),
            *(
                "--concurrency",
                str(CORES),
                "--loglevel",
                "WARNING",
                "--queues",
                self.environment["BENCH_QUEUE"],
            ),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ]


class CeleryOnRedis(_Celery):
    name: ClassVar[str] = "celery-redis"
    server: ClassVar[str] = "redis"
    modules = ("celery", "redis")


class CeleryOnRabbitmq(_Celery):
    name: ClassVar[str] = "celery-rabbitmq"
    server: ClassVar[str] = "rabbitmq"


class Dramatiq(_OverBroker):
    name: ClassVar[str] = "dramatiq"
    server: ClassVar[str] = "rabbitmq"
    modules = ("dramatiq", "pika")
    app = "dramatiq_app"
    settings = (
        f"RabbitMQ, one process of {_DRAMATIQ_THREADS} threads, its default; plain functions, the faster of"
        " its kinds; acknowledges late; counts once the acknowledgement is sent"
    )

    def worker_command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "dramatiq", "dramatiq_app", "--processes", "1"),
            *("--threads", str(_DRAMATIQ_THREADS)),
        ]


class Saq(_OverBroker):
    name: ClassVar[str] = "saq"
    server: ClassVar[str] = "redis"
    modules = ("saq", "redis")
    app = "saq_app"
    settings = "Redis, concurrency 100, hiredis; async def; counts once the job's end is in Redis"

    @classmethod
    def why_not(cls, servers: Servers, load: Load) -> str:
        if load.kind == "def":
            return "runs def tasks in threads of its loop's process, which nobody would choose for many"
        return super().why_not(servers, load)

    def worker_command(self) -> list[str]:
        return [sys.executable, "-m", "saq", "saq_app.settings"]
