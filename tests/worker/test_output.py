"""Capture of output: whole lines, caps, what is cut and said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.definition import ShellSpec
from ostinato.testing.contracts.executor_harness import attempt_of, task_spec
from ostinato.worker.output import (
    CHUNK_BYTES_MAX,
    HEAD_BYTES_MAX,
    LINE_BYTES_MAX,
    TAIL_BYTES_MAX,
    OutputCapture,
)


def capture() -> OutputCapture:
    return OutputCapture(attempt_of(task_spec("any", ShellSpec(command="true"))).assignment)


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_what_is_written_in_any_pieces_comes_out_whole(pieces: list[bytes]) -> None:
    output = capture()
    chunks = []
    for piece in pieces:
        output.write("stdout", piece)
        chunks += output.take(0)
    chunks += output.finish(0)
    written = b"".join(pieces)
    expected = written if written.endswith(b"\n") or not written else written + b"\n"
    shown = expected.decode("utf-8", "backslashreplace").replace("\0", "\u2400")
    assert "".join(chunk.text for chunk in chunks) == shown
    assert [chunk.sequence for chunk in chunks] == list(range(1, len(chunks) + 1))


def test_only_whole_lines_leave_before_the_end() -> None:
    output = capture()
    output.write("stdout", b"one\ntw")
    assert [chunk.text for chunk in output.take(0)] == ["one\n"]
    assert not output.has_pending
    assert [chunk.text for chunk in output.finish(0)] == ["tw\n"]


def test_streams_keep_their_order_and_neighbours_are_joined() -> None:
    output = capture()
    for stream, text in [("stdout", b"a\n"), ("stdout", b"b\n"), ("stderr", b"c\n"), ("stdout", b"d\n")]:
        output.write(stream, text)
    assert [(chunk.stream, chunk.text) for chunk in output.finish(0)] == [
        ("stdout", "a\nb\n"),
        ("stderr", "c\n"),
        ("stdout", "d\n"),
    ]


def test_a_line_is_cut_at_its_limit_and_says_by_how_much() -> None:
    output = capture()
    for _ in range(10):
        output.write("stdout", b"x" * LINE_BYTES_MAX)
    output.write("stdout", b"\nshort\n")
    output.write("stdout", b"y" * (LINE_BYTES_MAX + 7) + b"\nz\n")
    text = "".join(chunk.text for chunk in output.finish(0))
    first, second, third, fourth = text.splitlines()
    assert first == "x" * LINE_BYTES_MAX + f" … [{9 * LINE_BYTES_MAX} bytes of this line cut]"
    assert second == "short"
    assert third == "y" * LINE_BYTES_MAX + " … [7 bytes of this line cut]"
    assert fourth == "z"


def test_head_and_tail_are_kept_and_the_cut_is_counted_to_the_byte() -> None:
    output = capture()
    line = b"%015d\n"
    count = (HEAD_BYTES_MAX + 3 * TAIL_BYTES_MAX) // 16
    chunks = []
    for number in range(count):
        output.write("stdout", line % number)
        if output.has_pending:
            chunks += output.take(0)
    chunks += output.finish(0)
    kept = "".join(chunk.text for chunk in chunks if chunk.stream == "stdout")
    (notice,) = [chunk.text for chunk in chunks if chunk.stream == "log"]
    cut = int(notice.split("[")[1].split()[0])
    assert kept.startswith("000000000000000\n")
    assert kept.endswith(f"{count - 1:015d}\n")
    assert len(kept) + cut == count * 16
    assert len(kept) <= HEAD_BYTES_MAX + TAIL_BYTES_MAX
    assert all(len(chunk.text) <= CHUNK_BYTES_MAX for chunk in chunks)
