"""Synthetic images beside real ones: one picture in the page, of which every cell shows another section."""

import base64
import io
import json
import struct
from pathlib import Path

from PIL import Image

from raysim.observe.report.page import escape
from raysim.storage.formats import DamagedFile, misfit
from raysim.storage.run_reader import Run

PIXELS = 1_500_000  # bytes of pixels in the page at most; of large images fewer are shown

Source = tuple[int, int, int]  # of a synthetic image: label, client, round


def image_pairs(run: Run) -> str:
    """The pairs of pairs.png by class; empty where there is no such file."""
    path = run.path / "pairs.png"
    if not path.exists():
        return ""
    names = run.facts.get("classes", [])
    pixels, sources = _fitting(*_read(path, len(names)))
    buffer = io.BytesIO()
    pixels.save(buffer, "PNG", optimize=True)
    rows: dict[int, list[str]] = {}
    for i, (label, client, t) in enumerate(sources):
        source = f"client {client}" if client >= 0 else "the server"
        about = escape(f"{names[label]}: a real image, and a synthetic one of {source}, made in round {t}")
        rows.setdefault(label, []).append(
            f'<div class="pair" role="img" style="--at:{i}" title="{about}" aria-label="{about}">'
            "<span></span><span></span></div>"
        )
    blocks = (
        f'<div><h3>{escape(str(names[label]))}</h3><div class="row"><div class="names"><span>real</span>'
        f"<span>synthetic</span></div>{''.join(cells)}</div></div>"
        for label, cells in rows.items()
    )
    encoded = base64.b64encode(buffer.getvalue()).decode()
    # In a rule of its own: as a property of the elements it would be parsed once for each of them.
    style = f"<style>.pair span {{ background-image: url(data:image/png;base64,{encoded}); }}</style>"
    introduction = (
        "<p>Synthetic images beside real ones: below, an image that was shared; above, a real one of its class, of the "
        "client that made it where it has any.</p>"
    )
    return f'{introduction}{style}<div class="pairs" style="--count:{len(sources)}">{"".join(blocks)}</div>'


def _read(path: Path, classes: int) -> tuple[Image.Image, list[Source]]:
    """The picture, and of which label, client and round its pairs are."""
    try:
        with Image.open(path) as picture:
            pixels = picture.convert("RGB" if picture.mode == "RGB" else "L")
            sources = json.loads(picture.info["pairs"])
    # Pillow reports some damages of a PNG as a SyntaxError.
    except (OSError, SyntaxError, ValueError, KeyError, EOFError, struct.error, Image.DecompressionBombError):
        raise DamagedFile(path, "it is not a picture of pairs") from None
    whole = not misfit(sources, [[int]]) and all(len(each) == 3 and 0 <= each[0] < classes for each in sources)
    if not whole or not 0 < len(sources) <= pixels.width:
        raise DamagedFile(path, "what it says about its pairs is not whole")
    return pixels, [(label, client, t) for label, client, t in sources]


def _fitting(pixels: Image.Image, sources: list[Source]) -> tuple[Image.Image, list[Source]]:
    """The pairs that fit into the page: of large images only the first ones of each class."""
    wide, tall = pixels.width // len(sources), pixels.height
    fit = max(1, PIXELS // (len(pixels.getbands()) * wide * tall))
    if len(sources) <= fit:
        return pixels, sources
    by_label: dict[int, list[int]] = {}
    for i, (label, _, _) in enumerate(sources):
        by_label.setdefault(label, []).append(i)
    each = max(1, fit // len(by_label))
    chosen = [i for places in by_label.values() for i in places[:each]][:fit]
    smaller = Image.new(pixels.mode, (wide * len(chosen), tall))
    for place, i in enumerate(chosen):
        smaller.paste(pixels.crop((i * wide, 0, (i + 1) * wide, tall)), (place * wide, 0))
    return smaller, [sources[i] for i in chosen]
