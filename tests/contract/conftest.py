"""Lets pytest explain the contract suites' assertions as it does those of tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("ostinato.testing.contracts")
