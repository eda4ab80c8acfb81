"""A command, as ``shell`` and ``container`` have it."""

from __future__ import annotations

from typing import Any

from ostinato.control.document.kinds import ListOf, Text
from ostinato.control.document.reading import Reading, wrong_type

WORDS_COUNT_MAX = 10_000


class CommandKind:
    """A text for ``/bin/sh -c``, or a list of words."""

    _words = ListOf(Text(), WORDS_COUNT_MAX)

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if isinstance(value, list | tuple):
            return self._words.read(value, field, reading=reading)
        if isinstance(value, str):
            return Text().read(value, field, reading=reading)
        raise wrong_type(value, "a text or a list of texts", field=field)

    def write(self, value: Any) -> Any:
        return value if isinstance(value, str) else list(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1}, {**self._words.schema(), "minItems": 1}]}
