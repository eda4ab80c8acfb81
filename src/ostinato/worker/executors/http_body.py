"""The body of an HTTP answer as far as it is kept: decompressed within a bound, and as text.

The server is not trusted: a few kilobytes may stand for gigabytes, and the names of encodings may be
anything. Whatever it sends, memory stays within a few times `BODY_BYTES_MAX` and nothing here raises.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

BODY_BYTES_MAX = 1024 * 1024
#: More layers or members than anybody sends in earnest cost time without end.
_LAYERS_MAX = 4
_MEMBERS_MAX = 100
_ENCODING_SHOWN_CHARACTERS = 60

_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
_GZIP = frozenset({"gzip", "x-gzip"})
_CHARSET = re.compile(r"""charset\s*=\s*["']?([A-Za-z0-9_-]{1,40})""", re.IGNORECASE)
#: Not all that Python knows: some of its codecs are no character sets, and some take quadratic time.
_KNOWN_CHARSET = re.compile(
    r"utf-?(8|16|32)([-_]?[bl]e)?|(us-)?ascii|iso[-_]?8859-\d{1,2}|latin-?1|(windows-|cp)\d{3,4}|koi8-[rut]"
    r"|shift[-_]?jis|euc[-_]?(jp|kr)|gb2312|gbk|gb18030|big5|iso-2022-(jp|kr)",
    re.IGNORECASE,
)


class Body(NamedTuple):
    """What is kept of a body, and what is missing."""

    content: bytes
    #: False when it was cut, or could not be decoded.
    is_whole: bool
    #: Why nothing is kept, in words.
    problem: str | None = None


class _Layer(NamedTuple):
    content: bytes
    is_whole: bool


def decoded_body(raw: bytes, *, encodings: Sequence[str]) -> Body:
    """`raw` without its content encodings, listed as they were applied; at most `BODY_BYTES_MAX` of it."""
    content, is_whole = raw[:BODY_BYTES_MAX], len(raw) <= BODY_BYTES_MAX
    names = [name for name in (entry.strip().lower() for entry in encodings) if name not in ("", "identity")]
    if not content:
        # The answer to HEAD, or one without a body, names the encoding of what it does not carry.
        return Body(content, is_whole)
    if len(names) > _LAYERS_MAX:
        return Body(b"", False, f"the body is encoded {len(names)} times, at most {_LAYERS_MAX} are decoded")
    for name in reversed(names):
        if name not in _GZIP and name != "deflate":
            shown = ascii(name[:_ENCODING_SHOWN_CHARACTERS])
            return Body(b"", False, f"the body's content encoding {shown} is not known")
        try:
            layer = _gunzipped(content) if name in _GZIP else _inflated(content)
        except zlib.error:
            return Body(b"", False, f"the body is not valid {name}")
        content, is_whole = layer.content, is_whole and layer.is_whole
    return Body(content, is_whole)


def _gunzipped(encoded: bytes) -> _Layer:
    """All members of a gzip file, one after the other."""
    parts: list[bytes] = []
    room_bytes = BODY_BYTES_MAX
    for _ in range(_MEMBERS_MAX):
        decoder = zlib.decompressobj(_GZIP_WINDOW_BITS)
        # One byte more than there is room for tells a body that just fits from one that does not.
        try:
            part = decoder.decompress(encoded, room_bytes + 1)
        except zlib.error:
            if parts:
                return _Layer(b"".join(parts), False)
            raise
        parts.append(part[:room_bytes])
        if len(part) > room_bytes or not decoder.eof:
            return _Layer(b"".join(parts), False)
        room_bytes -= len(part)
        encoded = decoder.unused_data.lstrip(b"\0")
        if not encoded:
            return _Layer(b"".join(parts), True)
    return _Layer(b"".join(parts), False)


def _inflated(encoded: bytes) -> _Layer:
    """``deflate``, which servers send with zlib's frame and without."""
    try:
        return _inflated_as(encoded, zlib.MAX_WBITS)
    except zlib.error:
        return _inflated_as(encoded, -zlib.MAX_WBITS)


def _inflated_as(encoded: bytes, window_bits: int) -> _Layer:
    decoder = zlib.decompressobj(window_bits)
    content = decoder.decompress(encoded, BODY_BYTES_MAX + 1)
    return _Layer(content[:BODY_BYTES_MAX], decoder.eof and len(content) <= BODY_BYTES_MAX)


def text_of(content: bytes, *, content_type: str) -> str:
    """`content` in the character set that `content_type` names, or UTF-8; other bytes become escapes."""
    found = _CHARSET.search(content_type)
    if found is not None and _KNOWN_CHARSET.fullmatch(found[1]) is not None:
        try:
            return content.decode(found[1], "backslashreplace")
        except (LookupError, UnicodeError):
            # Such as cp9999: the name looks right and means nothing.
            return content.decode("utf-8", "backslashreplace")
    return content.decode("utf-8", "backslashreplace")
