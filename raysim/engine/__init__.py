"""The machinery of a run: the round loop, server and client work, exact sums, failure policy, and the runners."""
