"""Run all benchmarks: `make bench`."""

from benchmarks import planner

planner.main()
