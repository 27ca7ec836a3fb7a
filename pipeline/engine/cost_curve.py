"""Cost curves on disk: the pass times of a model on this machine, which `tuning.cost_curve` measures for the draft
planner.

    <engines>/<model>/.costs/<digest of the key>.json

The key holds everything that the time of a pass depends on: the weights in the files, the processor, the number of
processes. It does not hold the limits of a profile, so all profiles of a model with one quantization share a curve.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.config.schema import Frozen
from pipeline.config.threads import available_cores, num_threads
from pipeline.decoding.planning.cost import CostCurve, CostPoint
from pipeline.engine.artifact import COSTS, Artifact
from pipeline.engine.backend import backend_of
from pipeline.engine.fingerprint import cpu_name, digest_of
from pipeline.engine.machine_load import MachineLoad
from pipeline.errors import BuildError
from pipeline.files import write_atomically

# Share of the cores that other programs used above which a curve misleads the planner. Of three repeats of a pass the
# least counts, so up to a quarter most sizes have an undisturbed time, and drafts planned with the curve cost less than
# one percent of the speed (simulated: docs/decisions/046).
_DISTURBED_SHARE = 0.25


class CostKey(Frozen):
    """Everything that the time of a pass depends on. version: changes with the speed of this program's own passes."""

    version: int = 5
    files: str = Field(description="Hash of all settings that the weights in the files depend on.")
    device: str
    processor: str = Field(description="Name of the processor or GPU.")
    num_cores: int = Field(ge=1)
    num_threads: int | None = Field(None, description="Threads of a pass, if not one per core.")
    processes: str = Field(description="Number of processes of a pass, and the setting that asks for them.")


class CostCurveFile(Frozen):
    """Content of the file. others: cores that other programs used on average during the measurement."""

    key: CostKey
    created: str = Field(description="Time of the measurement, in UTC.")
    others: float = Field(ge=0)
    points: tuple[CostPoint, ...] = Field(min_length=1)

    @property
    def load(self) -> MachineLoad:
        """Load of the machine during the measurement."""
        return MachineLoad(self.others, self.key.num_cores)

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs used so much of the machine that the planner chooses worse drafts with this curve."""
        return self.others > _DISTURBED_SHARE * self.key.num_cores

    @property
    def curve(self) -> CostCurve:
        return CostCurve(self.points)

    def to_text(self) -> str:
        """One sentence: the load of the machine during the measurement, and the remedy if it was too high."""
        text = f"measured while {self.load.to_text()}"
        if not self.is_disturbed:
            return text
        return (
            f"{text}: too many for exact times, so drafts may be longer or shorter than is best; `lookahead engine` "
            "measures it again once they use less than half of that"
        )


def cost_key(artifact: Artifact) -> CostKey:
    """The key of an artifact's cost curve on this machine."""
    fingerprint, resolved = artifact.manifest.fingerprint, artifact.resolved
    setting, num_ranks = resolved.ranks
    num_cores, threads = available_cores(), num_threads(resolved.profile.server.replicas)
    return CostKey(
        files=backend_of(fingerprint.backend).files_digest(fingerprint),
        device=fingerprint.device,
        processor=_gpu_name() if resolved.device == "cuda" else cpu_name(),
        num_cores=num_cores,
        num_threads=None if threads == num_cores else threads,
        processes="1" if num_ranks == 1 else f"{setting} = {num_ranks}",
    )


def cost_curve_path(artifact: Artifact) -> Path:
    """Path of the curve of an artifact, measured or not."""
    key = cost_key(artifact).model_dump(mode="json", exclude_none=True)
    return artifact.folder.parent / COSTS / f"{digest_of(key)[:16]}.json"


def save_cost_curve(artifact: Artifact, points: tuple[CostPoint, ...], load: MachineLoad) -> CostCurveFile:
    """Store a curve, replacing an older one. load: of the machine during the measurement. Raises BuildError if it
    cannot be written."""
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    content = CostCurveFile(key=cost_key(artifact), created=created, others=round(load.others, 2), points=points)
    path = cost_curve_path(artifact)
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, content.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise BuildError(f"The cost curve cannot be written to {path}: {error.strerror}.") from error
    return content


def load_cost_curve(artifact: Artifact) -> CostCurveFile | None:
    """The curve of an artifact's passes; None if none was measured with these weights on this machine, or if the file
    cannot be read."""
    with suppress(OSError, ValidationError):
        return CostCurveFile.model_validate_json(cost_curve_path(artifact).read_bytes())
    return None


def _gpu_name() -> str:
    import torch

    return str(torch.cuda.get_device_name(0))
