"""All deliberate bugs, by name."""

from __future__ import annotations

from ostinato.simulation.mutations.database import DATABASE
from ostinato.simulation.mutations.mutation import Mutation
from ostinato.simulation.mutations.scheduler import SCHEDULER
from ostinato.simulation.mutations.worker import WORKER

MUTATIONS: dict[str, Mutation] = {mutation.name: mutation for mutation in (*SCHEDULER, *WORKER, *DATABASE)}
