"""gRPC, imported so that its core writes nothing of its own to stderr.

Its lines have a form of their own, among ours that are JSON, and say nothing that its errors do not say. How
much it writes is read from the environment at its import, and tasks must not inherit what we put there.
Whoever sets ``GRPC_VERBOSITY`` still gets the lines.
"""

from __future__ import annotations

import os

_VARIABLE = "GRPC_VERBOSITY"
_is_ours = _VARIABLE not in os.environ
if _is_ours:
    os.environ[_VARIABLE] = "NONE"

import grpc  # noqa: E402 - only now does it see the variable
import grpc.aio  # noqa: E402 - as above

if _is_ours:
    del os.environ[_VARIABLE]

__all__ = ["grpc"]
