"""Identifiers: sortable by time, unique, made from an injected clock and random source."""

from __future__ import annotations

from hashlib import blake2b
from random import Random

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)


def new_id(now_us: int, rng: Random) -> str:
    """26 characters of Crockford base 32: 48 bits of milliseconds, then 80 random bits.

    Sorts by time of creation to the millisecond; two of one millisecond sort at random.
    """
    value = ((max(now_us, 0) // 1000 & 0xFFFF_FFFF_FFFF) << 80) | rng.getrandbits(80)
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def is_id(text: str) -> bool:
    """Whether `text` could have been made by `new_id`."""
    return len(text) == 26 and text[0] in _ALPHABET[:8] and all(character in _ALPHABET for character in text)


def id_of(*parts: str) -> str:
    """26 characters as those of `new_id`, always the same for the same `parts`."""
    digest = blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    value = int.from_bytes(digest, "big")
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def id_within(whole_id: str, *parts: str) -> str:
    """Id of a part of what `whole_id`, made by `new_id`, names: always the same, sorting with the whole."""
    return whole_id[:9] + id_of(whole_id, *parts)[9:]


def new_attempt_id(rng: Random) -> str:
    """16 hexadecimal characters: the random part of a fencing token."""
    return f"{rng.getrandbits(64):016x}"


def stable_hash(*parts: str) -> int:
    """64-bit hash that is the same in every process and release (partition of a task, offset of `spread`)."""
    return int.from_bytes(
        blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )


def partition_of(namespace: str, task: str, *, partition_count: int) -> int:
    """Partition of a task and its standalone instances (design section 3, Partitions)."""
    return stable_hash(namespace, task) % partition_count
