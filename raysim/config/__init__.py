"""A run's configuration: its settings, and how flags, TOML files and presets resolve to one."""

from raysim.config.help import TOPICS, by_topic, essential, help_lines, markdown_table
from raysim.config.run_config import RunConfig, check
from raysim.config.sources import CALL, Layer, from_command_line, from_record, from_toml, load_layers, resolve, take

__all__ = [
    "CALL", "TOPICS", "Layer", "RunConfig", "by_topic", "check", "essential", "from_command_line", "from_record",
    "from_toml", "help_lines", "load_layers", "markdown_table", "resolve", "take",
]  # fmt: skip
