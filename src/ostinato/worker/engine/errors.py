"""What can go wrong with an engine; apart from the client, which needs httpx."""

from __future__ import annotations


class EngineAway(Exception):
    """No answer, which says nothing about what was done."""


class EngineRefused(Exception):
    """The engine has answered that it does not."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class PullFailed(Exception):
    """The engine could not fetch an image, in its own words."""
