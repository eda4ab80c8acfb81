"""What a payment service leaves to a scheduler: captures that fail at times, and a nightly settlement."""

from __future__ import annotations

from datetime import date

from ostinato import App, Context, Permanent, Retry

app = App("payments")

#: Stands for the bank's own client.
captured: dict[str, int] = {}


@app.task(retry=Retry.exponential("10s", max_interval="1h", max_retry=12, window="1d"), timeout="30s")
def capture(order: str, amount: int) -> str:
    """Capture an authorised amount; the bank refuses what is not positive for good."""
    if amount <= 0:
        raise Permanent(f"{amount} is no amount", code="BAD_AMOUNT")
    captured[order] = amount
    receipt.submit(order)
    return f"captured {amount} for {order}"


@app.task
async def receipt(order: str) -> str:
    """Tell the customer."""
    return f"receipt for {order}: {captured[order]}"


@app.task(
    cron="30 2 * * *", timezone="Europe/Berlin", retry=Retry.fixed("15m", max_retry=8), overlap="forbid"
)
def settle_day(context: Context) -> str:
    """Settle the day that has just ended."""
    assert context.scheduled is not None, "it is only ever fired"
    return f"settled {date.fromordinal(context.scheduled.date().toordinal() - 1)}: {sum(captured.values())}"


upload = app.shell(
    "upload", "sftp -b upload.batch bank.example", retry=Retry.fixed("5m", max_retry=3, retry_on=["EXIT_75"])
)
