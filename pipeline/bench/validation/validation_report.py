"""Reports of a validation run and of the checks of the torch engine, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.bench.report.manifest import manifest_of
from pipeline.bench.report.report import markdown_of
from pipeline.bench.report.results import load_results
from pipeline.bench.validation.validation import BENCH_JSON, StageResult, ValidationPlan, has_passed
from pipeline.engine.backend import backend_of
from pipeline.errors import UserError
from pipeline.files import write_atomically
from pipeline.markdown import markdown_table


def report_of(plan: ValidationPlan, results: Sequence[StageResult]) -> dict[str, Any]:
    """The report of a run, as JSON values."""
    report = {
        "passed": has_passed(results),
        **manifest_of(None, asdict(plan)),
        "backend": backend_of(plan.backend).environment(),
        "stages": [asdict(result) for result in results],
    }
    as_json: dict[str, Any] = json.loads(json.dumps(report))
    return as_json


def write_report(out_dir: Path, report: dict[str, Any]) -> tuple[Path, Path]:
    """Write report.md and report.json. Returns their paths."""
    return _write(out_dir, "report", report, report_markdown(report, out_dir / BENCH_JSON))


def report_markdown(report: dict[str, Any], bench: Path) -> str:
    """The report as Markdown, with the tables of the bench results if there are any. bench: file of the results."""
    config, env = report["config"], report["env"]
    devices, builds = report["backend"].get("devices", []), report["backend"].get("versions", {})
    versions = report["versions"] | {f"{name} (builds)": version for name, version in builds.items()}
    fields = {
        "result": "passed" if report["passed"] else "FAILED",
        "model": f"{config['model']} ({config['profile']}, then {config['other_profile']})",
        "backend": config["backend"],
        "settings": " ".join([*config["first_only"], *config["overrides"]]) or "-",
        "GPUs": "; ".join(devices) or "none",
        "machine": f"{env['cpu']}, {env['num_cpus']} CPUs, {env['memory_gb']} GB, {env['platform']}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": report["commit"] or "-",
        "created": report["created"],
    }
    stages = [
        (
            stage["name"],
            stage["purpose"],
            stage["outcome"] + (f" ({stage['reason']})" if stage["reason"] else ""),
            f"{stage['seconds']:.1f}",
        )
        for stage in report["stages"]
    ]
    lines = ["# Validation", "", markdown_table(("", ""), list(fields.items())), "", "## Stages", ""]
    lines.append(markdown_table(("stage", "purpose", "outcome", "seconds"), stages))
    for stage in report["stages"]:
        if stage["outcome"] == "failed":
            lines += ["", f"## Failed: {stage['name']}", "", f"`{stage['command']}`", ""]
            lines += [f"Log: {stage['log'] or '-'}", "", "```", stage["tail"], "```"]
    return "\n".join([*lines, *_bench_lines(bench), ""])


def _bench_lines(bench: Path) -> list[str]:
    if not bench.is_file():
        return []
    try:
        return ["", "## Bench", "", markdown_of(load_results(bench))]
    except UserError as error:  # the rest of the report is still useful
        return ["", "## Bench", "", f"The results cannot be read: {error}"]


def write_engine_report(folder: Path, options: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> None:
    """Write engine.md and engine.json with the results so far. options: of the checks."""
    report = {**manifest_of(None, dict(options)), "checks": list(results)}
    _write(folder, "engine", report, "\n".join(_engine_lines(report)) + "\n")


def _write(folder: Path, name: str, report: dict[str, Any], markdown: str) -> tuple[Path, Path]:
    paths = folder / f"{name}.md", folder / f"{name}.json"
    for path, text in zip(paths, (markdown, json.dumps(report, indent=2, ensure_ascii=False) + "\n"), strict=True):
        write_atomically(path, text)
    return paths


def _engine_lines(report: Mapping[str, Any]) -> Iterator[str]:
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
        yield from _details_of_check(check)


def _details_of_check(check: Mapping[str, Any]) -> Iterator[str]:
    """Every value of a check that is a table of figures by name."""
    for name, value in check.items():
        rows = value if isinstance(value, list) else [value]
        if rows and all(isinstance(row, dict) for row in rows):
            shown = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in rows]
            yield f"{name.replace('_', ' ')}:\n\n{markdown_table(tuple(rows[0]), shown)}\n"
    if "agreement" in check:
        yield f"agreement with transformers: {check['agreement']:.0%}"
