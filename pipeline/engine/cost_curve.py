"""The cost curve beside an artefact: what `tuning.cost_curve` measured on this machine, for the draft planner."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.config.schema import Frozen
from pipeline.decoding.cost import CostCurve, CostPoint, cost_curve
from pipeline.errors import BuildError

COST_CURVE = "cost_curve.json"


class CostRow(Frozen):
    """One point: see `pipeline.decoding.cost.CostPoint`."""

    num_tokens: int = Field(ge=1, description="Tokens of the pass over all sequences.")
    batch_size: int = Field(ge=1)
    context_len: int = Field(ge=0, description="Cached tokens of each sequence.")
    seconds: float = Field(gt=0, description="Least time that the pass took.")


class CostCurveFile(Frozen):
    """What is stored. fingerprint_digest: of the artefact it was measured with."""

    fingerprint_digest: str
    points: tuple[CostRow, ...] = Field(min_length=1)


def save_cost_curve(folder: Path, fingerprint_digest: str, points: tuple[CostPoint, ...]) -> Path:
    """Store a curve in an artefact's folder, in place of an older one."""
    rows = tuple(
        CostRow(num_tokens=p.num_tokens, batch_size=p.batch_size, context_len=p.context_len, seconds=p.seconds)
        for p in points
    )
    path = folder / COST_CURVE
    partial = folder / f".{COST_CURVE}.{os.getpid()}.partial"
    content = CostCurveFile(fingerprint_digest=fingerprint_digest, points=rows)
    try:
        partial.write_text(content.model_dump_json(indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BuildError(f"The cost curve cannot be written to {path}: {error.strerror}.") from error
    return path


def load_cost_curve(folder: Path, fingerprint_digest: str) -> CostCurve | None:
    """The curve stored with an artefact; None if none was measured, or with another build. Raises BuildError if the
    file is damaged."""
    path = folder / COST_CURVE
    try:
        stored = CostCurveFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise BuildError(
            f"{path} cannot be read as a cost curve; measure it again with `lookahead bench --cost-curve`, "
            "or delete it."
        ) from error
    if stored.fingerprint_digest != fingerprint_digest:
        return None
    return cost_curve((p.num_tokens, p.batch_size, p.context_len, p.seconds) for p in stored.points)
