"""Places that may break a house rule, each with its reason; one that is no longer needed fails the tests."""

from __future__ import annotations

#: (rule, path, name of the function, call or code): why this place may.
EXCEPTIONS: dict[tuple[str, str, str], str] = {
    ("positional_parameters", "src/ostinato/simulation/checkers/checker.py", "Checker.violate"): (
        "reads as it is told: when, of what, and the sentence"
    ),
    ("positional_parameters", "src/ostinato/errors.py", "invariant"): (
        "reads as an assertion: condition, rule, message, in the order in which people write them"
    ),
    ("boolean_parameters", "src/ostinato/errors.py", "invariant"): (
        "the condition is what is asserted, not a switch, so its place says what it is"
    ),
    ("positional_parameters", "src/ostinato/api/server.py", "NodeApp.__call__"): (
        "ASGI calls an application with scope, receive and send by position"
    ),
    ("positional_parameters", "src/ostinato/core/states.py", "require_move"): (
        "a move reads as its row of the table: name, source, target"
    ),
    ("positional_parameters", "src/ostinato/core/retry/verdict.py", "decide"): (
        "the design's own signature: policy, failure, counters"
    ),
    ("positional_parameters", "src/ostinato/core/schedule/cron_fires.py", "next_cron_fire"): (
        "an expression in a zone, after an instant"
    ),
    ("positional_parameters", "src/ostinato/core/schedule/interval.py", "next_interval_fire"): (
        "every, from its anchor, after an instant"
    ),
    ("positional_parameters", "src/ostinato/core/schedule/preview.py", "preview_cron"): (
        "the order of the command: expression, zone, start, count"
    ),
    ("positional_parameters", "src/ostinato/core/schedule/trigger.py", "trigger_id"): (
        "a task's name in its namespace, then its trigger"
    ),
    **{
        ("dead_files", f"src/ostinato/core/workflow/{name}.py", f"ostinato.core.workflow.{name}"): (
            "the core of workflows; the stores and the owner's loop that call it follow (docs/workflows.md)"
        )
        for name in (
            *("advance", "circles", "definition", "graph", "mapping", "payload", "resume", "rollback"),
            *("rows", "rules", "states", "step"),
        )
    },
    ("dead_files", "src/ostinato/core/breaker.py", "ostinato.core.breaker"): (
        "the core of circuit breakers; the row of the stores and the way through assignments follow"
    ),
    (
        "dead_files",
        "src/ostinato/control/document/workflow_block.py",
        "ostinato.control.document.workflow_block",
    ): "reads workflows; `apply` takes them once they can run (docs/workflows.md)",
    ("banned_calls", "src/ostinato/clock.py", "time.time_ns"): "the system clock itself",
    ("banned_calls", "src/ostinato/clock.py", "time.clock_gettime_ns"): "the system clock itself",
    ("banned_calls", "src/ostinato/worker/guardian_main.py", "time.clock_gettime_ns"): (
        "the clock's module brings an event loop, which this process does without"
    ),
    ("banned_calls", "src/ostinato/clock.py", "asyncio.sleep"): "the one place that may sleep",
    (
        "banned_calls",
        "src/ostinato/testing/real_sleep.py",
        "time.sleep",
    ): "refuses it in the tasks of users' tests",
}
