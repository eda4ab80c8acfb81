"""Measures the codec: microseconds a task for assignments and outcomes at 100 a frame.

Run ``python bench/wire_codec.py``. The target is below 5 µs for each of the four. Fails (exit 1) above it.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable

from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Cause, Failure
from ostinato.core.model import Outcome
from ostinato.wire.codec import decode_node, decode_worker, encode_node, encode_worker
from ostinato.wire.messages import Assignment, Assignments, Outcomes

ITEMS_PER_FRAME = 100
TARGET_US = 5.0
_ROUNDS = 200
_REPEATS = 5

_PAYLOAD = b'{"order": 12345, "customer": "C-2210", "lines": [1, 2, 3]}'
_RESULT = b'{"rows": 12345, "file": "report.csv"}'


def assignments() -> Assignments:
    """A frame's worth of ordinary assignments."""
    return Assignments(
        17,
        [
            Assignment(
                instance_id=f"0192f0c1-7b2a-7c3d-8e4f-{number:012d}",
                ref=TaskRef("default", "nightly_report"),
                version=3,
                generation=1,
                attempt=1,
                attempt_id=f"0192f0c1-7b2a-7c3d-9e4f-{number:012d}",
                retry_count=0,
                payload=_PAYLOAD,
                due_us=1_730_000_000_000_000 + number,
            )
            for number in range(ITEMS_PER_FRAME)
        ],
    )


def outcomes(failure: Failure | None) -> Outcomes:
    """A frame's worth of outcomes, all successful or all failed alike."""
    return Outcomes(
        [
            Outcome(
                instance_id=f"0192f0c1-7b2a-7c3d-8e4f-{number:012d}",
                attempt=1,
                attempt_id=f"0192f0c1-7b2a-7c3d-9e4f-{number:012d}",
                started_us=1_730_000_000_000_000,
                finished_us=1_730_000_000_500_000,
                result=_RESULT if failure is None else None,
                failure=failure,
            )
            for number in range(ITEMS_PER_FRAME)
        ],
        {"process": 1_000, "async": 40},
    )


def failure() -> Failure:
    """What an ordinary exception gives."""
    classes = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
    return Failure(
        "ECONNREFUSED",
        "transient",
        "[Errno 111] Connection refused",
        classes=classes,
        chain=(Cause(classes[0], "[Errno 111] Connection refused", classes),),
        traceback='  File "/app/tasks.py", line 17, in report\n    connect(host)\n' * 12,
    )


def microseconds(call: Callable[[], object]) -> float:
    """Best of several runs, by item."""
    seconds = min(timeit.repeat(call, number=_ROUNDS, repeat=_REPEATS))
    return seconds / _ROUNDS / ITEMS_PER_FRAME * 1e6


def main() -> int:
    """Print one line a kind."""
    orders, successes, failures = assignments(), outcomes(None), outcomes(failure())
    [order_frame] = encode_node([orders])
    [success_frame] = encode_worker([successes])
    [failure_frame] = encode_worker([failures])
    rows = [
        ("assignment encode", microseconds(lambda: list(encode_node([orders]))), order_frame),
        ("assignment decode", microseconds(lambda: decode_node(order_frame)), order_frame),
        ("outcome encode", microseconds(lambda: list(encode_worker([successes]))), success_frame),
        ("outcome decode", microseconds(lambda: decode_worker(success_frame)), success_frame),
        ("failed outcome encode", microseconds(lambda: list(encode_worker([failures]))), failure_frame),
        ("failed outcome decode", microseconds(lambda: decode_worker(failure_frame)), failure_frame),
    ]
    for name, figure, frame in rows:
        print(f"{name:24}{figure:6.2f} µs a task {len(frame) / ITEMS_PER_FRAME:8.0f} bytes a task")
    return 0 if all(figure < TARGET_US for _, figure, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
