"""What the benchmarks share: durable servers of their own, rounds in turn, tables of ratios."""
