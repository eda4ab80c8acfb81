"""Where a PostgreSQL database tells its listeners that somebody has committed something for them."""

from __future__ import annotations

#: Channel of ``NOTIFY``; the payload is the name of who has committed, and after a space what ``store.hints``
#: makes of a few new instances, if anything.
CHANGE_CHANNEL = "ostinato_change"
