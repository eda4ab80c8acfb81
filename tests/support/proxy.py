"""The proxy of ``ostinato chaos``, with which tests do to connections what networks do."""

from __future__ import annotations

from ostinato.chaos.proxy import Proxy

__all__ = ("Proxy",)
