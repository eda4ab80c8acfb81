"""Real nodes, workers and servers under kills, with an outside witness."""
