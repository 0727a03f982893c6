"""A run's configuration: its settings, and how flags, TOML files and presets resolve to one."""

from raysim.config.run_config import OPERATIONAL, RunConfig, check, load_layers, resolve

__all__ = ["OPERATIONAL", "RunConfig", "check", "load_layers", "resolve"]
