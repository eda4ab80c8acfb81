"""All faults of a document as one error."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.errors import UserError


class InvalidDocument(UserError):
    """A document with faults: itself shows the first of them, `errors` holds all, in their order."""

    def __init__(self, errors: Sequence[UserError]) -> None:
        first = errors[0]
        super().__init__(
            first.code,
            first.message,
            subject=first.subject,
            field=first.field,
            hint=first.hint,
            place=first.place,
        )
        self.errors = tuple(errors)


def unknown_field(name: object, known: Sequence[str], *, field: str, thing: str, hint: str = "") -> UserError:
    """The fault of a key that `thing` does not have; without a `hint`, the nearest or all known ones."""
    # Imported by those who read names only.
    from ostinato.control.names import did_you_mean

    shown = shown_key(name)
    return UserError(
        "INVALID_VALUE",
        f"{shown!r} is not a field of {thing}",
        field=joined(field, shown),
        hint=hint or did_you_mean(shown, known) or f"known are {', '.join(known)}",
    )


def joined(field: str, name: str) -> str:
    """Path of the member `name` of the block at `field`; the block at the root has an empty path."""
    return f"{field}.{name}" if field else name


def shown_key(key: object) -> str:
    """A key as it may stand in a path: no control characters, no lone surrogates, not endless."""
    text = key if isinstance(key, str) else repr(key)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 80 else text[:80] + "…"
