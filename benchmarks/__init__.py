"""Benchmarks: every figure is a ratio within one run, to the naive version and to the floor."""
