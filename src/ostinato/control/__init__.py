"""What a person or program can ask of Ostinato, one verb per file.

Each verb is a function over a ``Store``. Command line, SDK and REST call the same ones, so they cannot drift
apart. What depends on the input alone is checked here; the owner checks the state again when it acts (I5).
"""
