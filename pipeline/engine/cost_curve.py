"""The cost curves beside an artefact: what `tuning.cost_curve` measured on this machine, for the draft planner.

There is one for each number of processes that the engine has run in. The build does not depend on it, but the cost of a
pass does: the processes share the cores, split the trees and wait for each other."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.config.schema import Frozen
from pipeline.decoding.cost import CostCurve, CostPoint, cost_curve
from pipeline.engine.artifact import Artifact
from pipeline.errors import BuildError
from pipeline.files import write_whole


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


def cost_curve_path(artifact: Artifact) -> Path:
    """Where the curve of an artefact lies, for as many processes as its settings ask for."""
    setting, num_ranks = artifact.resolved.ranks
    kind = "" if num_ranks == 1 else f"-{setting.rpartition('.')[2]}-{num_ranks}"
    return artifact.folder / f"cost_curve{kind}.json"


def save_cost_curve(artifact: Artifact, points: tuple[CostPoint, ...]) -> Path:
    """Store a curve in an artefact's folder, in place of an older one."""
    rows = tuple(
        CostRow(num_tokens=p.num_tokens, batch_size=p.batch_size, context_len=p.context_len, seconds=p.seconds)
        for p in points
    )
    path = cost_curve_path(artifact)
    content = CostCurveFile(fingerprint_digest=artifact.manifest.fingerprint_digest, points=rows)
    try:
        write_whole(path, content.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise BuildError(f"The cost curve cannot be written to {path}: {error.strerror}.") from error
    return path


def load_cost_curve(artifact: Artifact) -> CostCurve | None:
    """The curve stored with an artefact; None if none was measured, or with another build or number of processes.
    Raises BuildError if the file is damaged."""
    path = cost_curve_path(artifact)
    try:
        stored = CostCurveFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise BuildError(
            f"{path} cannot be read as a cost curve; measure it again with `lookahead bench --cost-curve`, "
            "or delete it."
        ) from error
    if stored.fingerprint_digest != artifact.manifest.fingerprint_digest:
        return None
    return cost_curve((p.num_tokens, p.batch_size, p.context_len, p.seconds) for p in stored.points)
