"""Places that may break a house rule, each with its reason; one that is no longer needed fails the tests."""

from __future__ import annotations

#: (rule, path, name of the function, call or code): why this place may.
EXCEPTIONS: dict[tuple[str, str, str], str] = {
    ("positional_parameters", "src/ostinato/errors.py", "invariant"): (
        "reads as an assertion: condition, rule, message, in the order in which people write them"
    ),
    ("boolean_parameters", "src/ostinato/errors.py", "invariant"): (
        "the condition is what is asserted, not a switch, so its place says what it is"
    ),
    ("positional_parameters", "src/ostinato/api/server.py", "NodeApp.__call__"): (
        "ASGI calls an application with scope, receive and send by position"
    ),
    ("banned_calls", "src/ostinato/clock.py", "time.time_ns"): "the system clock itself",
    ("banned_calls", "src/ostinato/clock.py", "time.clock_gettime_ns"): "the system clock itself",
    ("banned_calls", "src/ostinato/clock.py", "asyncio.sleep"): "the one place that may sleep",
}
