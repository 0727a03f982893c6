"""raysim: federated learning on non-IID data, simulated on a Ray cluster of GPUs."""

__version__ = "0.1.0"
