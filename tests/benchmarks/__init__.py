"""The benchmarks run, at sizes at which their figures mean nothing."""
