"""What tests of the worker share: an app in a file of its own, and executors of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

APP_SOURCE = """
import asyncio
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import time

from ostinato.core.failure.signals import Permanent, RetryLater, TaskError
from ostinato.sdk.app import App
from ostinato.sdk.context import Context, current_context

app = App("sample")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def nothing():
    return None


@app.task
def fail():
    raise TaskError("no such customer", code="NO_CUSTOMER")


@app.task
def sleep_long():
    time.sleep(600)


@app.task
def wait_for_cancel(context: Context):
    while True:
        context.raise_if_cancelled()
        time.sleep(0.01)


@app.task
def tidy_up_when_cancelled(context: Context):
    while not context.cancelled:
        time.sleep(0.01)
    return "asked to end"


@app.task
def endless_loop():
    while True:
        pass


@app.task
def socket_read():
    left, right = socket.socketpair()
    left.recv(1)


@app.task
def c_loop():
    ctypes.CDLL(None).usleep(600_000_000)
    ctypes.CDLL(None).pause()


@app.task
def talk():
    print("one")
    print("two")


@app.task
def talk_everywhere():
    print("printed")
    print("to stderr", file=sys.stderr)
    subprocess.run(["/bin/sh", "-c", "echo from a child"], check=True)
    os.write(1, b"raw \\xff\\x00 bytes\\n")
    logging.getLogger("shop.orders").info("logged")
    current_context().logger.info("through the context")


@app.task
def spawn_and_hang(path: str):
    child = subprocess.Popen(["setsid", "sleep", "600"])
    with open(path, "w") as file:
        file.write(str(child.pid))
    time.sleep(600)


@app.task
def bad_result():
    return float("nan")


@app.task
def huge_result():
    return "x" * (1024 * 1024 + 1)


@app.task
def leave():
    os._exit(3)


@app.task
def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def process_id() -> int:
    return os.getpid()


class Unprintable(Exception):
    def __init__(self, required, also):
        super().__init__(required)
        self.socket = socket.socket()

    def __str__(self):
        raise RuntimeError("no text")


@app.task
def raise_unprintable():
    raise Unprintable("a", "b")


@app.task
def raise_huge():
    raise ValueError("\\ud800\\0" + "x" * 50_000_000)


@app.task
def whoami(context: Context) -> list:
    return [context.instance_id, context.attempt, context.attempt_id, context.deadline is not None]


@app.task
def progress(context: Context):
    context.progress(0.25, "loading")
    for _ in range(1000):
        context.heartbeat()
    context.progress(1.0, "done")


@app.task
async def async_add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@app.task
async def async_nothing():
    return None


@app.task
async def async_fail():
    raise Permanent("never", code="NEVER")


@app.task
async def async_wait():
    await asyncio.sleep(600)


@app.task
async def async_stubborn():
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass


@app.task
async def async_block(path: str):
    with open(path, "w") as file:
        file.write("blocked")
    time.sleep(600)


@app.task
async def async_talk():
    print("one")
    await asyncio.sleep(0)
    print("two")


@app.task
async def async_talk_as(name: str):
    for number in range(20):
        print(f"{name} {number}")
        logging.getLogger("shop").info("%s logs", name)
        await asyncio.sleep(0)
    await asyncio.to_thread(print, f"{name} in a thread")


@app.task
async def async_cancel_itself():
    raise asyncio.CancelledError


@app.task
async def async_exit():
    sys.exit(4)


@app.task
async def async_process_id() -> int:
    return os.getpid()
"""


@pytest.fixture(scope="session")
def app_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with an app whose tasks behave in every way that tests need."""
    path = tmp_path_factory.mktemp("app") / "sample_tasks.py"
    path.write_text(APP_SOURCE)
    return path
