"""Ostinato: a distributed task scheduler in which every retry is decided in one place, by the scheduler."""
