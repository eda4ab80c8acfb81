"""The simulator: the real scheduler, worker and SDK code on virtual time, where everything may go wrong.

See docs/simulation.md. Never imported by the rooms below.
"""
