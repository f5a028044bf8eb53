"""Run all benchmarks: `make bench`."""

import os

from benchmarks import grid, planner, setup, simulator, startup

startup.main()
planner.main()
setup.main("cpu")
if "CODEDFEDL_DATA" in os.environ:
    simulator.main([])
    grid.main()
else:
    print("The simulator's benchmark needs MNIST: set CODEDFEDL_DATA to its folder.")
