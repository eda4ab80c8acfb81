"""Claims: no two runs of chaos on one machine have hold of the same process or the same disk.

The end of one pause would end the other, and one ballast would be taken for the cluster's own data. A claim
is a name that the kernel gives to one socket at a time, and takes back however its process ends.
"""

from __future__ import annotations

import socket
import sys

from ostinato.errors import UserError
from ostinato.worker.process_tree import TreeProcess


class Claims:
    """What this run has hold of, until `close`."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def take_process(self, process: TreeProcess, *, name: str) -> None:
        """Claim a process, again too. Raises ``CHAOS_REFUSED`` while another run has hold of it."""
        what = f"process/{process.pid}/{process.start_ticks}"
        self._take(what, shown=f"process {process.pid}", field=f"processes.{name}")

    def take_disk(self, device: int, *, name: str) -> None:
        """Claim a disk by its device number. Raises ``CHAOS_REFUSED`` while another run has hold of it."""
        self._take(f"disk/{device}", shown="this disk", field=f"disks.{name}")

    def close(self) -> None:
        """Let go of everything; idempotent."""
        held, self._held = self._held, {}
        for claim in held.values():
            claim.close()

    def _take(self, what: str, *, shown: str, field: str) -> None:
        # Names without a file are Linux's own.
        if what in self._held or sys.platform != "linux":
            return
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0ostinato-chaos/{what}")
        except OSError:
            claim.close()
            message = f"another run of chaos has hold of {shown}"
            hint = "wait for its end: each would restore what the other breaks"
            raise UserError("CHAOS_REFUSED", message, field=field, hint=hint) from None
        self._held[what] = claim
