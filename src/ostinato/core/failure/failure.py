"""What an attempt ended with: one record of fixed size, safe to store, send and show."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ostinato.core.failure.categories import category_of, is_category
from ostinato.core.failure.codes import is_valid_code, numeric_code
from ostinato.core.failure.text import cut_middle, cut_text
from ostinato.core.instants import DURATION_MAX_US, INSTANT_MAX_US, INSTANT_MIN_US

MESSAGE_BYTES_MAX = 8 * 1024
TRACEBACK_BYTES_MAX = 64 * 1024
DETAIL_BYTES_MAX = 8 * 1024
CAUSE_MESSAGE_BYTES_MAX = 1024
CHAIN_LENGTH_MAX = 20
CLASSES_LENGTH_MAX = 32
CLASS_NAME_BYTES_MAX = 256


class Cause(msgspec.Struct, frozen=True):
    """One exception of the chain: its qualified class name, its text, and its ancestors with itself first."""

    class_name: str
    message: str
    classes: tuple[str, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt failed (design section 1, *failure*).

    `classes` are the qualified names of the outermost exception's class and its ancestors, without
    ``object`` and ``BaseException``; names of builtins stand without ``builtins.``. `chain` starts with the
    outermost exception itself; both are empty where no Python exception was involved.
    `retry_after_us` is a delay that counts from the failure's own time, `retry_at_us` an instant.
    """

    code: str
    category: str
    message: str
    classes: tuple[str, ...] = ()
    chain: tuple[Cause, ...] = ()
    traceback: str = ""
    retry_after_us: int | None = None
    retry_at_us: int | None = None
    detail: str = ""

    @property
    def numeric(self) -> int:
        """Eight-digit form of the code: module · function · detail."""
        return numeric_code(self.code)


def safe_failure(
    code: str,
    message: str,
    *,
    category: str | None = None,
    classes: Iterable[str] = (),
    chain: Iterable[Cause] = (),
    traceback: str = "",
    retry_after_us: int | None = None,
    retry_at_us: int | None = None,
    detail: str = "",
) -> Failure:
    """Failure with text made safe and every size capped; never raises on any text (C069, C157).

    `category` None means the code's own. A code that is none becomes ``UNKNOWN_CODE`` and an unknown category
    the code's own, with the original words in `detail`. A negative delay counts as 0; a delay or instant
    beyond the range that can be shown becomes the last one that can.
    """
    notes = [detail] if detail else []
    if not is_valid_code(code):
        notes.append(f"reported with code {code[:200]!r}")
        code = "UNKNOWN_CODE"
    if category is not None and not is_category(category):
        notes.append(f"reported with category {category[:200]!r}")
        category = None
    return Failure(
        code=code,
        category=category_of(code) if category is None else category,
        message=cut_text(message, MESSAGE_BYTES_MAX),
        classes=_safe_names(classes),
        chain=tuple(_safe_cause(cause) for cause in tuple(chain)[:CHAIN_LENGTH_MAX]),
        traceback=cut_middle(traceback, TRACEBACK_BYTES_MAX),
        retry_after_us=None if retry_after_us is None else min(max(retry_after_us, 0), DURATION_MAX_US),
        retry_at_us=None if retry_at_us is None else min(max(retry_at_us, INSTANT_MIN_US), INSTANT_MAX_US),
        detail=cut_text("; ".join(notes), DETAIL_BYTES_MAX),
    )


def _safe_cause(cause: Cause) -> Cause:
    return Cause(
        class_name=cut_text(cause.class_name, CLASS_NAME_BYTES_MAX),
        message=cut_text(cause.message, CAUSE_MESSAGE_BYTES_MAX),
        classes=_safe_names(cause.classes),
    )


def _safe_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(cut_text(name, CLASS_NAME_BYTES_MAX) for name in tuple(names)[:CLASSES_LENGTH_MAX])
