"""The store in memory: the contract of the databases, without threads or real time; for tests."""

from ostinato.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
