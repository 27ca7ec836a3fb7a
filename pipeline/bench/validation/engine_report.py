"""The report of the checks of the torch engine: Markdown to read, JSON as data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.bench.report.manifest import manifest_of
from pipeline.bench.validation.engine_checks import CheckOptions
from pipeline.files import write_whole
from pipeline.markdown import markdown_table

REPORT_JSON, REPORT_MARKDOWN = "engine.json", "engine.md"


def write_engine_report(folder: Path, options: CheckOptions, results: Sequence[Mapping[str, Any]]) -> Path:
    """Write engine.md and engine.json with the results so far; returns the first."""
    report = {**manifest_of(None, asdict(options)), "checks": list(results)}
    write_whole(folder / REPORT_JSON, json.dumps(report, indent=2) + "\n")
    path = folder / REPORT_MARKDOWN
    write_whole(path, "\n".join(_lines(report)) + "\n")
    return path


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    env, versions = report["env"], report["versions"]
    fields = {
        "device": env.get("gpu", env["cpu"]) if report["config"]["device"] == "cuda" else env["cpu"],
        "versions": ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions),
        "cuda": env.get("cuda", "-"),
        "command": " ".join(report["command"]),
        "commit": report["commit"] or "-",
        "created": report["created"],
    }
    yield "# Torch engine on this device\n"
    yield markdown_table(("", ""), list(fields.items()))
    yield "\n## Checks\n"
    rows = [
        (check["name"], "passed" if check["passed"] else f"FAILED: {check['error']}", f"{check['seconds']:.1f}")
        for check in report["checks"]
    ]
    yield markdown_table(("check", "result", "seconds"), rows)
    for check in report["checks"]:
        yield f"\n## {check['name']}\n"
        yield from _details(check)


def _details(check: Mapping[str, Any]) -> Iterator[str]:
    if "largest_logit_gap" in check:
        gaps = check["largest_logit_gap"].items()
        yield "Largest difference of a node's logits, in a tree against its path alone: " + ", ".join(
            f"{gap:.2g} in {dtype}" for dtype, gap in gaps
        )
        yield ""
    if "columns" in check:
        yield markdown_table(check["columns"], check["rows"])
    for key in ("speeds", "points", "table"):
        if rows := check.get(key):
            yield ""
            yield markdown_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    if "summary" in check:
        yield ""
        yield markdown_table(tuple(check["summary"]), [tuple(check["summary"].values())])
