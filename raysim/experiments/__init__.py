"""Many runs at once: grids of settings, the papers' sweeps by name, a scheduler of runs and the table of results.

The command line calls `grid.compare` or `grid.sweep`, and `scheduler.run_grid` with what they return.
"""
