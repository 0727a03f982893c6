"""Run directories written by hand, and pages of reports read as texts and series."""

import json
import re
from html import unescape
from pathlib import Path

from raysim.config import RunConfig

SETTINGS = {
    "method": "fedprox", "dataset": "cifar10", "clients": 3, "active": 2, "rounds": 3, "partition": "iid", "seed": 7,
}  # fmt: skip


def config_json(settings: dict, **facts) -> str:
    """The content of a config.json with these settings, and the defaults of others."""
    content = {"format": 1, "run": "by hand", "settings": RunConfig().settings() | settings, "classes": []}
    content |= {"shape": [3, 32, 32], "mean": [0.0] * 3, "std": [1.0] * 3, "data": "", "sources": {}}
    return json.dumps(content | facts)


def written(folder: Path, lines: list[dict], settings: dict | None = None, **files) -> Path:
    """A run directory; `files` are the contents by name, `summary` for summary.json, and lists are written as lines."""
    folder.mkdir(parents=True)
    config = config_json(SETTINGS | (settings or {}), classes=["ant", "bee"], versions={"raysim": "0"})
    (folder / "config.json").write_text(config)
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"format": 1} | line) + "\n" for line in lines))
    for name, content in files.items():
        if isinstance(content, str):
            (folder / f"{name}.csv").write_text(content)
        elif name in ("events", "timeline"):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def words(html: str) -> list[str]:
    """The texts between the tags."""
    return [unescape(text).strip() for text in re.split(r"<[^>]*>", html) if text.strip()]


def sections(page: Path) -> dict[str, list[str]]:
    """The texts of each section by its heading, and under "" what stands above them."""
    html = page.read_text()
    found = {"": words(html.partition("<header>")[2].partition("</header>")[0])}
    for body in re.findall(r"<section id=[^>]*>(.*?)</section>", html, re.DOTALL):
        heading, *texts = words(body)
        found[heading] = texts
    return found


def charts(page: Path) -> dict[str, dict]:
    """The data of each chart by its title."""
    html = page.read_text()
    data = json.loads(html.partition('id="charts">')[2].partition("</script>")[0])
    titles = re.findall(r'<figure data-chart="(\w+)"[^>]*><figcaption><b>(.*?)</b>', html)
    return {unescape(title): data[name] for name, title in titles}
