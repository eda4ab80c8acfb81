"""The histogram without locks says what the library's would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from ostinato.observe.histogram import LoopHistogram

_BOUNDS = (0.001, 0.25, 1, 60)


@given(st.lists(st.floats(min_value=0, max_value=100) | st.sampled_from(_BOUNDS)))
def test_it_is_shown_as_the_librarys(amounts: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = LoopHistogram("waits_seconds", "Waits.", bounds=_BOUNDS, registry=ours)
    library = Histogram("waits_seconds", "Waits.", buckets=_BOUNDS, registry=theirs)
    for amount in amounts:
        histogram.observe(amount)
        library.observe(amount)
    shown = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == shown
