"""An app without tasks, and a cluster that takes up what a test declares."""

from __future__ import annotations

import pytest

from ostinato import App


@pytest.fixture
def app() -> App:
    return App("shop", "http://127.0.0.1:9")
