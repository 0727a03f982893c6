"""The HTML of a page: sections, tiles, tables and places for charts, put together with style and scripts."""

import html
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from raysim.errors import InputError
from raysim.storage.files import write_atomically

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("base.js", "lines.js", "fields.js")
# The browser then loads and sends nothing, even if the name of a dataset's class were taken for markup.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
escape = html.escape


class Page:
    """A page in the making: its sections, and the data of their charts."""

    def __init__(self, title: str, about: str):
        self.title = title
        self.head = [f"<h1>{escape(title)}</h1>", f"<p>{escape(about)}</p>"]
        self.sections: list[tuple[str, str]] = []
        self.charts: dict[str, dict[str, Any]] = {}

    def section(self, title: str, *content: str) -> None:
        """Add a section, unless all its content is empty."""
        if any(content):
            self.sections.append((title, "".join(content)))

    def chart(self, title: str, spec: dict[str, Any] | None, note: str = "", wide: bool = False) -> str:
        """Return a figure that the script of its kind draws from `spec`; empty where there is no spec."""
        if spec is None:
            return ""
        name = f"c{len(self.charts)}"
        self.charts[name] = spec
        caption = f"<b>{escape(title)}</b>" + (f"<span>{escape(note)}</span>" if note else "")
        return (
            f'<figure data-chart="{name}" data-kind="{spec["kind"]}"{" class=wide" if wide else ""}>'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    def write(self, path: Path) -> Path:
        """Write the page as one file, and return its path."""
        if path.is_dir():
            raise InputError(f"--out {path} is a directory; give the name of the page, e.g. {path / 'report.html'}")
        if not path.absolute().parent.is_dir():
            raise InputError(f"--out {path}: there is no folder {path.absolute().parent}; make it first")
        write_atomically(path, self.html().encode())
        return path

    def html(self) -> str:
        """Return the whole page."""
        names = [f"s{i}" for i in range(len(self.sections))]
        titled = [(name, escape(title), text) for name, (title, text) in zip(names, self.sections, strict=True)]
        links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in titled)
        body = "".join(f'<section id="{name}"><h2>{title}</h2>{text}</section>' for name, title, text in titled)
        scripts = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
            f"<style>{(ASSETS / 'style.css').read_text(encoding='utf-8')}</style></head>\n"
            f"<body><header>{''.join(self.head)}</header><nav><div>{links}</div></nav>\n<main>{body}</main>"
            "<footer>Made by raysim. Hover over a chart to read its values, or go there with Tab and use arrow keys."
            "</footer><noscript><p>The charts need JavaScript; it is in this file.</p></noscript>"
            f'<script type="application/json" id="charts">{as_script_data(self.charts)}</script>\n'
            f"<script>(() => {{\n{scripts}\nstart();\n}})();</script></body></html>\n"
        )


def as_script_data(content: Any) -> str:
    """Return JSON that cannot end the script element around it, whatever names are in it."""
    return json.dumps(finite(content), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def finite(content: Any) -> Any:
    """Replace every number that is not finite by None, since JSON cannot express it."""
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def tiles(figures: list[tuple[str, str, str]]) -> str:
    """Return figures side by side, each with its name and a note below it."""
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in figures
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def table(heads: list[str], rows: list[list[str]], numbers: tuple[int, ...] = ()) -> str:
    """Return a table of cells that are HTML already; the columns in `numbers` are aligned to the right."""
    kind = [' class="number"' if i in numbers else "" for i in range(len(heads))]
    top = "".join(f"<th{kind[i]}>{escape(head)}</th>" for i, head in enumerate(heads)) if any(heads) else ""
    lines = "".join(f"<tr>{''.join(f'<td{kind[i]}>{cell}</td>' for i, cell in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table>{top and f"<thead><tr>{top}</tr></thead>"}<tbody>{lines}</tbody></table></div>'


def settings_list(values: Mapping[str, Any], changed: Collection[str] = ()) -> str:
    """Return names and values in columns; those in `changed` stand out."""
    lines = (
        f"<div{' class=changed' if key in changed else ''}><dt>{escape(str(key))}</dt>"
        f"<dd>{escape(text_of(value))}</dd></div>"
        for key, value in values.items()
    )
    return f'<dl class="settings">{"".join(lines)}</dl>'


def text_of(value: Any) -> str:
    """Return a value of any kind as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {text_of(item)}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def bytes_text(count: float) -> str:
    """Return a number of bytes as people read it: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
