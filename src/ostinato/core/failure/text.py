"""Text from outside made safe to store, send and show: no NUL, no lone surrogate, never too long."""

from __future__ import annotations

import re

#: NUL is shown as its picture, because PostgreSQL text and JSON cannot carry it (C157).
_NUL_PICTURE = "\u2400"
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def safe_text(text: str) -> str:
    """`text` with NUL as U+2400 and each lone surrogate as U+FFFD, so that every store can hold it."""
    return _SURROGATE.sub(_REPLACEMENT, text.replace("\0", _NUL_PICTURE))


def cut_text(text: str, limit_bytes: int) -> str:
    """Safe text of at most `limit_bytes` of UTF-8; the end is cut, and a notice says how much there was."""
    if _fits(text, limit_bytes):
        return safe_text(text)
    notice = f" … [cut, {len(text)} characters in all]"
    return _head(text, limit_bytes - len(notice.encode())) + notice


def cut_middle(text: str, limit_bytes: int) -> str:
    """Like `cut_text`, but head and tail are kept: a traceback's last lines say what happened."""
    if _fits(text, limit_bytes):
        return safe_text(text)
    notice = f"\n… [cut, {len(text)} characters in all] …\n"
    room_bytes = limit_bytes - len(notice.encode())
    tail_bytes = room_bytes // 2
    return _head(text, room_bytes - tail_bytes) + notice + _tail(text, tail_bytes)


def _fits(text: str, limit_bytes: int) -> bool:
    # A character is at least a byte, so the length alone spares encoding 50 MB to cut 8 KiB of it.
    return len(text) <= limit_bytes and len(safe_text(text).encode()) <= limit_bytes


def _head(text: str, size_bytes: int) -> str:
    return safe_text(text[:size_bytes]).encode()[:size_bytes].decode("utf-8", "ignore")


def _tail(text: str, size_bytes: int) -> str:
    return safe_text(text[-size_bytes:]).encode()[-size_bytes:].decode("utf-8", "ignore")
