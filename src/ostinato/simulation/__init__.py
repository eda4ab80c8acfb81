"""The deterministic simulator: the real scheduler, worker and SDK code on virtual time, with faults.

See docs/simulation.md. Never imported by the rooms below.
"""
