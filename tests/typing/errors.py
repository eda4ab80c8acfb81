"""What type checkers must refuse; each line says with which code."""

from __future__ import annotations

from datetime import datetime

from ostinato import App, Context, Handle, Retry, State, cron, every
from ostinato.testing import Cluster

app = App("shop")


@app.task
def report(context: Context, day: str, amount: int = 1) -> float:
    return float(amount)


@app.task(timeout="1m")
async def clean(day: str) -> int:
    return len(day)


report.submit()  # E: call-arg
report.submit(17)  # E: arg-type
report.submit("x", amount="y")  # E: arg-type
report.submit("x", amuont=1)  # E: call-arg
report.options(key=1).submit("x")  # E: arg-type
report.options(priority="high").submit("x")  # E: arg-type
report.options().submit()  # E: call-arg
report.options(when="5m")  # E: call-arg
wrong_result: Handle[str] = report.submit("x")  # E: assignment
wrong_value: str = clean.submit("x").result()  # E: assignment
wrong_state: int = clean.submit("x").status()  # E: assignment
not_awaited: int = clean("x")  # E: assignment
app.task(timeuot="1m")  # E: call-overload
app.task(overlap="sometimes")  # E: call-overload
app.task(isolation="none")  # E: call-overload
app.task(memory_limit=0.5)  # E: call-overload
app.shell("backup", "true", cpu_limit="2")  # E: arg-type
app.shell("backup", 17)  # E: arg-type
app.submit(report, ["x"])  # E: arg-type
Retry.exponential(5, multiplyer=2)  # E: call-arg
Retry.fixed(5, jitter="some")  # E: arg-type
cron("@daily", misfire="never")  # E: arg-type
every(None)  # E: arg-type
app.submit("x", at="2026-01-01")  # E: arg-type
App("shop", "sqlite://", "default")  # E: call-arg
cluster = Cluster(app, start="2026-01-01")  # E: arg-type
cluster.fail(report, 5.5)  # E: arg-type
cluster.fail(report, OSError, attempts=2)  # E: arg-type
cluster.finish(report)  # E: call-overload
cluster.advance(None)  # E: arg-type
unused = (datetime, State.SUCCESS)
