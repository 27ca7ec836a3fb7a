"""Cost curves on disk: what `tuning.cost_curve` measured of a model's passes on this machine, for the draft planner.

    <engines>/<model>/.costs/<digest of the key>.json

The key names what the time of a pass depends on: the weights as they lie in the files, the processor, the number of
processes. A profile's limits are no part of it, so all profiles of a model in one quantisation share a curve.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.config.schema import Frozen
from pipeline.config.threads import available_cores
from pipeline.decoding.cost import CostCurve, CostPoint
from pipeline.engine.artifact import COSTS, Artifact
from pipeline.engine.backend import backend_of
from pipeline.engine.fingerprint import digest_of
from pipeline.engine.machine_load import MachineLoad
from pipeline.engine.provenance import cpu_name
from pipeline.errors import BuildError
from pipeline.files import write_whole


class CostKey(Frozen):
    """What the time of a pass depends on. version: changes with the speed of this program's own passes."""

    version: int = 1
    files: str = Field(description="Hash of what the weights in the files depend on, quantisation included.")
    device: str
    processor: str = Field(description="Name of the processor or GPU.")
    num_cores: int = Field(ge=1)
    processes: str = Field(description="How many share a pass, and by which setting.")


class CostCurveFile(Frozen):
    """What is stored. others: cores that other programs used on average while it was measured."""

    key: CostKey
    created: str = Field(description="When, in UTC.")
    others: float = Field(ge=0)
    points: tuple[CostPoint, ...] = Field(min_length=1)

    @property
    def load(self) -> MachineLoad:
        """Of the machine while it was measured."""
        return MachineLoad(self.others, self.key.num_cores)

    @property
    def curve(self) -> CostCurve:
        return CostCurve(self.points)

    def to_text(self) -> str:
        """Whether the machine was busy during the measurement, and what to do then."""
        if not self.load.busy:
            return "measured on an idle machine"
        return (
            f"measured while {self.load.to_text()}, so drafts may be planned badly; `lookahead engine` measures it "
            "again when they use less than half of that"
        )


def cost_key(artifact: Artifact) -> CostKey:
    """What the times of an artefact's passes depend on, here and with as many processes as its settings ask for."""
    fingerprint, resolved = artifact.manifest.fingerprint, artifact.resolved
    setting, num_ranks = resolved.ranks
    return CostKey(
        files=backend_of(fingerprint.backend).files_digest(fingerprint),
        device=fingerprint.device,
        processor=_gpu_name() if resolved.device == "cuda" else cpu_name(),
        num_cores=available_cores(),
        processes="1" if num_ranks == 1 else f"{setting} = {num_ranks}",
    )


def cost_curve_path(artifact: Artifact) -> Path:
    """Where the curve of an artefact lies, measured or not."""
    return artifact.folder.parent / COSTS / f"{digest_of(cost_key(artifact).model_dump(mode='json'))[:16]}.json"


def save_cost_curve(artifact: Artifact, points: tuple[CostPoint, ...], load: MachineLoad) -> CostCurveFile:
    """Store a curve in place of an older one. load: of the machine meanwhile."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    content = CostCurveFile(key=cost_key(artifact), created=created, others=round(load.others, 2), points=points)
    path = cost_curve_path(artifact)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise BuildError(f"The cost curve cannot be written to {path}: {error.strerror}.") from error
    return content


def load_cost_curve(artifact: Artifact) -> CostCurveFile | None:
    """The curve of an artefact's passes; None if none was measured of these weights on this machine. Raises BuildError
    if the file is damaged."""
    path = cost_curve_path(artifact)
    try:
        return CostCurveFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise BuildError(
            f"{path} cannot be read as a cost curve; measure it again with `lookahead bench --cost-curve`, "
            "or delete it."
        ) from error


def _gpu_name() -> str:
    import torch

    return str(torch.cuda.get_device_name(0))
