"""What a test asks of the store behind an app, on the app's own loop."""

from __future__ import annotations

from ostinato import App
from ostinato.core.model import Instance
from ostinato.store.batches import InstanceFilter
from ostinato.store.memory import MemoryStore


def only(store: MemoryStore, app: App) -> Instance:
    return all_of(store, app)[-1]


def all_of(store: MemoryStore, app: App) -> list[Instance]:
    async def read(_: object) -> list[Instance]:
        page = await store.list_instances(InstanceFilter(), cursor=None, limit=100_000)
        whole = await store.get_instances([instance.id for instance in page.instances])
        return sorted(whole.values(), key=lambda instance: (instance.created_us, instance.id))

    return app._connection.client.call(read)
