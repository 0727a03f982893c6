"""Synthetic images beside real ones: one picture in the page, of which every cell shows its own part."""

import base64
import io
import json

from PIL import Image

from raysim.observe.report.page import escape
from raysim.storage.run_reader import Run

PIXELS = 1_500_000  # bytes of them at most; of large images fewer are shown


def image_pairs(run: Run) -> str:
    """The pairs of pairs.png by class; nothing where there is none."""
    path = run.path / "pairs.png"
    if not path.exists():
        return ""
    with Image.open(path) as picture:
        whose, pixels = json.loads(picture.text["pairs"]), picture.convert("RGB" if picture.mode == "RGB" else "L")
    wide, tall = pixels.width // len(whose), pixels.height
    fit = max(1, PIXELS // (len(pixels.getbands()) * wide * tall))
    if len(whose) > fit:  # large images: fewer of each class
        labels = list(dict.fromkeys(label for label, _, _ in whose))
        each = max(1, fit // len(labels))
        chosen = [i for label in labels for i in [i for i, pair in enumerate(whose) if pair[0] == label][:each]][:fit]
        smaller = Image.new(pixels.mode, (wide * len(chosen), tall))
        for place, i in enumerate(chosen):
            smaller.paste(pixels.crop((i * wide, 0, (i + 1) * wide, tall)), (place * wide, 0))
        pixels, whose = smaller, [whose[i] for i in chosen]
    buffer = io.BytesIO()
    pixels.save(buffer, "PNG", optimize=True)
    names = run.facts["classes"]
    rows: dict[int, list[str]] = {}
    for i, (label, client, t) in enumerate(whose):
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
    # In a rule of its own: as a property of the elements it would be parsed once for each.
    style = f"<style>.pair span {{ background-image: url(data:image/png;base64,{encoded}); }}</style>"
    said = (
        "<p>Synthetic images beside real ones: below, an image that was shared; above, a real one of its class, of the "
        "client that made it where it has any.</p>"
    )
    return f'{said}{style}<div class="pairs" style="--count:{len(whose)}">{"".join(blocks)}</div>'
