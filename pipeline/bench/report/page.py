"""A report as one HTML file with tables, SVG plots and the manifest, without scripts and external files."""

from __future__ import annotations

import json
import re
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from pipeline.bench.report.plots import plots_of
from pipeline.bench.report.report import sections_of, title_of
from pipeline.bench.report.results import BenchResults


def html_of(results: BenchResults) -> str:
    """The report as the text of an HTML file."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["inline_markdown"] = inline_markdown
    text = resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        title=title_of(results),
        sections=sections_of(results),
        plots=plots_of(results),
        manifest=json.dumps(results.manifest, indent=2, ensure_ascii=False),
    )


def inline_markdown(text: str) -> Markup:
    """Escaped text in which `code` and **bold** become HTML elements. Reports use no other Markdown."""
    escaped = str(escape(text))
    escaped = re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped)
    return Markup(re.sub(r"\*\*([^*]*)\*\*", r"<strong>\1</strong>", escaped))
