"""Contract suites: what every adapter of a protocol must do, as classes that pytest collects.

An adapter's test module derives from a suite and gives it the fixtures that the suite's docstring names.
"""
