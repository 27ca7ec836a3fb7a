"""Draw the two flows: `python docs/images/flows.py` writes flows-light.svg and flows-dark.svg beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple


class Colours(NamedTuple):
    """ink, soft: letters and lines. box, edge: ground and border of a stage. source, rim: those of a draft source."""

    ink: str
    soft: str
    box: str
    edge: str
    source: str
    rim: str


THEMES = {
    "light": Colours("#1f2933", "#52606d", "#e8f0fe", "#3367d6", "#e6f4ea", "#188038"),
    "dark": Colours("#f5f7fa", "#cbd2d9", "#1c2b4a", "#8ab4f8", "#17351f", "#81c995"),
}
BUILD = {
    "config": "YAML",
    "checkpoint": "weights",
    "engine": "artifact",
    "repository": "Triton models",
    "server": "tritonserver",
    "client": "OpenAI, gRPC, HTTP",
}
SOURCES = ("trie of past outputs", "the request's own text", "lookahead window", "recycled candidates")
STEP = {
    "draft tree": "sized by the planner",
    "verify pass": "one pass, tree mask",
    "accept": "the target's tokens",
    "learn": "sources, KV cache",
}


def box(x: int, y: int, width: int, text: str, note: str, colours: Colours) -> Iterator[str]:
    """A rounded box; without a note it is a draft source."""
    fill, edge = (colours.box, colours.edge) if note else (colours.source, colours.rim)
    middle, height = x + width // 2, y + (21 if note else 29)
    yield f'<rect x="{x}" y="{y}" width="{width}" height="48" rx="8" fill="{fill}" stroke="{edge}"/>'
    yield f'<text x="{middle}" y="{height}" fill="{colours.ink}" font-size="16">{escape(text)}</text>'
    if note:
        yield f'<text x="{middle}" y="{y + 39}" fill="{colours.soft}" font-size="12.5">{escape(note)}</text>'


def arrow(x1: int, y1: int, x2: int, y2: int, colours: Colours) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colours.soft}" marker-end="url(#head)"/>'


def picture(colours: Colours) -> str:
    """The SVG text in the given colours."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 366" font-family="system-ui, sans-serif" '
        'text-anchor="middle" role="img"><title>The build flow and the decoding step</title>',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{colours.soft}"/></marker></defs>',
    ]
    for y, flow in ((24, "build"), (124, "step")):
        parts.append(f'<text x="16" y="{y}" text-anchor="start" font-weight="600" fill="{colours.ink}">{flow}</text>')
    for place, (text, note) in enumerate(BUILD.items()):
        x = 16 + place * 158
        parts += box(x, 36, 138, text, note, colours)
        if place:
            parts.append(arrow(x - 20, 60, x - 2, 60, colours))
    for place, text in enumerate(SOURCES):
        y = 132 + place * 54
        parts += box(16, y, 190, text, "", colours)
        parts.append(arrow(206, y + 24, 254, 219 + place * 12, colours))
    for place, (text, note) in enumerate(STEP.items()):
        x = 256 + place * 178
        parts += box(x, 213, 154, text, note, colours)
        if place:
            parts.append(arrow(x - 24, 237, x - 2, 237, colours))
    line = f'fill="none" stroke="{colours.soft}" stroke-dasharray="4 4" marker-end="url(#head)"'
    parts.append(f'<path d="M867 261 V356 H111 V344" {line}/>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    for name, colours in THEMES.items():
        Path(__file__).with_name(f"flows-{name}.svg").write_text(picture(colours), encoding="utf-8")
