"""Deliberate bugs, each of which the simulator must find: the alarm is tested."""
