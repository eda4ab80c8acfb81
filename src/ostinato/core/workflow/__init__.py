"""Workflows: what a graph of tasks means, and how its owner carries one run of it on; pure.

``definition`` is what an author writes, ``graph`` refuses what could not run and lays out the rest,
``rules`` and ``payload`` say when a node runs and with what. ``rows`` are what is stored of a run.
``advance`` is the step: facts in, effects out; ``mapping``, ``rollback`` and ``resume`` are its parts. The
page is docs/workflows.md.
"""
