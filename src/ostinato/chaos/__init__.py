"""Faults for a user's own cluster, with consent: done on a schedule, undone on every way out, and judged."""
