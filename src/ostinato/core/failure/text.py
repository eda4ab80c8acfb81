"""Text from outside made safe to store, send and show: no NUL, no lone surrogate, never too long."""

from __future__ import annotations

import re

#: NUL is shown as its picture, because PostgreSQL text and JSON cannot carry it (C157).
_NUL_PICTURE = "\u2400"
_SURROGATE = re.compile("[\ud800-\udfff]")
#: What a terminal or browser would obey, and what nobody would see: controls, direction marks and overrides,
#: separators, spaces without width, letters without form, tags, surrogates. The joiners without width are
#: letters of some scripts and hold emoji together, so they count only beside ASCII or an end.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff\u200c\u200d]"
)
_JOINERS = "\u200c\u200d"
_REPLACEMENT = "\ufffd"


def safe_text(text: str) -> str:
    """`text` with NUL as U+2400 and each lone surrogate as U+FFFD, so that every store can hold it."""
    return _SURROGATE.sub(_REPLACEMENT, text.replace("\0", _NUL_PICTURE))


def escape_unseen(text: str) -> str:
    """`text` with characters that are obeyed rather than shown, or not seen at all, as escapes (C187).

    The escapes, ``\\x1b``, ``\\u202e``, are those of Python and, within double quotes, of YAML.
    """
    if text.isascii() and text.isprintable():
        return text  # gigabytes of output pass here
    return _UNSEEN.sub(lambda found: _python_escape(found) if _is_unseen(found) else found[0], text)


def has_unseen(text: str) -> bool:
    """Whether `escape_unseen` would change anything."""
    return any(map(_is_unseen, _UNSEEN.finditer(text)))


def _is_unseen(found: re.Match[str]) -> bool:
    if found[0] not in _JOINERS:
        return True
    text, at = found.string, found.start()
    # Nothing, at an end, is ASCII too.
    return text[max(at - 1, 0) : at].isascii() or text[at + 1 : at + 2].isascii()


def _python_escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def escape_unseen_in_json(text: str) -> str:
    """JSON of the same meaning as `text`, with the characters of `escape_unseen` above ASCII as escapes."""
    # They only occur inside strings; those of ASCII are escaped in JSON anyway, but for DEL.
    return text if text.isascii() and "\x7f" not in text else _UNSEEN.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    if units < b"\0 " or not _is_unseen(found):  # the first are white space between values
        return found[0]
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


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
