"""The papers' settings by name (`--preset`); flags given beside a preset win over it."""

from dataclasses import dataclass
from functools import cache

from raysim.papers.files import Settings, flat, names, read


@dataclass(frozen=True)
class Preset:
    """Settings by name, with a line about their origin."""

    about: str
    settings: Settings


@cache
def presets() -> dict[str, Preset]:
    """Return every preset by name, the small variants last."""
    found = {}
    for file in names(of_tables=False):
        for name, content in read(file).get("presets", {}).items():
            own = flat({key: value for key, value in content.items() if key not in ("about", "from")})
            shared: Settings = {}
            for block in content.get("from", []):
                shared |= settings_of(file, block)
            found[name] = Preset(content["about"], own | shared | own)  # own ones first, also when they are listed
    return found | {f"{name}-small": _small(found[name]) for name in _without_small(found)}


def settings_of(file: str, block: str) -> Settings:
    """Return settings that presets of a file share.

    >>> settings_of("hfmds", "table1")["hfmds.steps"]
    500
    """
    return flat(read(file)["settings"][block])


def _without_small(found: dict[str, Preset]) -> list[str]:
    """Return the presets of which a small variant is made."""
    large = [name for name in found if not name.endswith("-small") and f"{name}-small" not in found]
    return [name for name in large if name not in read("small")["none_of"]]


def _small(preset: Preset) -> Preset:
    """Return the small variant of a preset, by the rules of small.toml."""
    settings = {key: value for key, value in preset.settings.items() if key not in read("small")["without"]}
    settings |= settings_of("small", "all")
    lowered = settings_of("small", "at_most").items()
    settings |= {key: min(settings[key], most) for key, most in lowered if key in settings}
    parts = preset.settings["method"].split("+")
    settings |= {key: v for key, v in settings_of("small", "parts").items() if key.partition(".")[0] in parts}
    return Preset(f"{preset.about}; small", settings)
