"""Which addresses and methods the API answers, said before a body is read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ostinato.errors import UserError

_PLACEHOLDER = re.compile(r"\\\{[^/]*?\\\}")


class Address(NamedTuple):
    """One address, such as ``/api/v1/instances/{instance_id}``, and its methods."""

    template: str
    pattern: re.Pattern[str]
    methods: frozenset[str]


class Addresses:
    """The table of addresses; one without placeholders goes before one with."""

    def __init__(self, routes: Iterable[tuple[str, Iterable[str]]]) -> None:
        entries = [
            Address(template, re.compile(_PLACEHOLDER.sub("[^/]+", re.escape(template))), frozenset(methods))
            for template, methods in routes
        ]
        self._entries = sorted(entries, key=lambda entry: (entry.template.count("{"), entry.template))

    def find(self, path: str) -> Address:
        """The address that `path` names. Raises ``ADDRESS_NOT_FOUND``."""
        for entry in self._entries:
            if entry.pattern.fullmatch(path) is not None:
                return entry
        shown = path[:200]
        raise UserError("ADDRESS_NOT_FOUND", f"there is nothing at {shown!a}", hint=self._hint(path))

    def _hint(self, path: str) -> str:
        trimmed = "/" + "/".join(part for part in path.split("/") if part)
        if trimmed != path and any(entry.pattern.fullmatch(trimmed) for entry in self._entries):
            return "write it without empty parts and without a slash at its end"
        return "GET /api/v1/openapi.json lists the addresses"
