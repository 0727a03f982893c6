"""Benchmarks that compare programs side by side; each prints ratios measured in one run."""
