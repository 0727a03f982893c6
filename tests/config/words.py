"""The configuration that words on the command line ask for."""

from raysim.config import RunConfig, from_command_line, load_layers, resolve


def from_words(*words: str) -> RunConfig:
    return resolve(load_layers(from_command_line(list(words)), {}))
