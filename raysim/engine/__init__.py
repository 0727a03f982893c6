"""The machinery of a run: placement plan, client and server actors, exact sums, the round loop, the run directory."""
