"""Where a PostgreSQL database tells its listeners that somebody has committed something for them."""

from __future__ import annotations

#: Channel of ``NOTIFY``; the payload is empty, since the hint says only "look".
CHANGE_CHANNEL = "ostinato_change"
