"""Sizes in bytes: what can be written, and what comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.sizes import format_size, parse_size
from ostinato.errors import UserError


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("512MiB", 512 * 1024**2),
        ("512 MiB", 512 * 1024**2),
        ("1.5GiB", 3 * 1024**3 // 2),
        ("64KiB", 65536),
        ("1KB", 1000),
        ("2MB", 2_000_000),
        ("3GB", 3_000_000_000),
        ("100B", 100),
        ("0.5B", 0),
        (4096, 4096),
    ],
)
def test_a_size_is_read_with_its_unit_and_a_number_is_bytes(written: str | int, size_bytes: int) -> None:
    assert parse_size(written, field="memory_limit") == size_bytes


@pytest.mark.parametrize(
    "written", ["512", "512M", "512mib", "MiB", "-1MiB", "1e3MiB", "1,5GiB", "", 1.5, True, None, b"1MiB"]
)
def test_what_is_no_size_is_refused_by_field_with_a_hint(written: object) -> None:
    with pytest.raises(UserError) as caught:
        parse_size(written, field="memory_limit")
    assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "memory_limit")
    assert "512MiB" in caught.value.hint


@given(st.integers(0, 2**50))
def test_a_formatted_size_reads_back_as_itself(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes), field="size") == size_bytes
