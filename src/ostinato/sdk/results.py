"""What the tasks that are not Python result in, as ``handle.result()`` gives it."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class ShellResult(TypedDict):
    """Of a command or container that has succeeded; `stdout_tail`: the end of its output, at most 4 KiB."""

    exit_code: int
    stdout_tail: str


class HttpResult(TypedDict):
    """Of an answer that counts as a success.

    `body` is what its JSON holds, and text where it is not JSON; `truncated` is there, and True, where the
    text is only the beginning; `undecoded` says why there is no body, where its encoding cannot be read.
    """

    status: int
    body: object
    truncated: NotRequired[bool]
    undecoded: NotRequired[str]
