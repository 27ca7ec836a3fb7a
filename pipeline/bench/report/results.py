"""Results of a measurement: one record per request, a summary per task and strategy, and the JSON file of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.decoding.drafting.reliability_row import ReliabilityRow
from pipeline.decoding.planning.cost import CostPoint
from pipeline.engine.machine_load import MachineLoad
from pipeline.errors import UserError
from pipeline.files import is_stream, partial_path, write_atomically
from pipeline.json_lines import reading

OVERALL = "overall"

Warmth = Literal["cold", "warm"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MeasuredRequest(_Value):
    """Measurement of one request by one contender. seconds: wall time from submission to the last token, including the
    prompt."""

    output_ids: list[int]
    steps: int = Field(ge=0, description="Passes of the target that emitted tokens; the prefill counts as one.")
    draft_tokens: int = Field(ge=0)
    accepted_tokens: int = Field(ge=0)
    accepted_by_source: dict[str, int] = Field(
        default={}, description="Accepted draft tokens by the source with the highest estimate; in process only."
    )
    reliability: list[ReliabilityRow] = Field(
        default=[],
        description="Verified draft nodes by source and estimate: see `drafting.reliability`; in process only.",
    )
    acceptance_lengths: list[int] = Field(description="Tokens emitted per step.")
    seconds: float = Field(ge=0)
    ttft_s: float = Field(ge=0)
    draft_seconds: float = Field(ge=0, description="Time in retrieval: drafting and learning.")
    forced_tokens: int = Field(0, description="Tokens without a pass, which a grammar forces; in process only.")
    mask_seconds: float = Field(0.0, description="Time of a grammar's masks; in process only.")
    guide_seconds: float = Field(0.0, description="Time to cut and extend drafts by a grammar; in process only.")
    finish_reason: str | None


class RequestRecord(MeasuredRequest):
    """One request and its measurement."""

    id: str
    task: str
    strategy: str
    repeat: int = Field(0, ge=0, description="Number of the repeat of the workload.")
    prompt_ids: list[int]
    identical: bool = Field(description="Output equal to that of the baseline for the same prompt and repeat.")


class SummaryRow(_Value):
    """One strategy on one task, or on all of them (task "overall"). See `summary.summarize` for the definitions."""

    task: str
    strategy: str
    num_prompts: int
    num_requests: int
    output_tokens: int
    steps: int
    acceptance_length: float = Field(description="Generated tokens / steps.")
    tokens_per_s: float
    speedup: float | None = Field(description="Against the baseline over the same prompts; None without one.")
    speedup_low: float | None = Field(description="Lower end of the 95% bootstrap interval.")
    speedup_high: float | None
    draft_tokens_per_step: float
    acceptance_rate: float = Field(description="Accepted / drafted tokens; 0 without drafts.")
    ttft_ms: float = Field(description="Median.")
    draft_ms_per_step: float = Field(description="Time in retrieval per step.")
    draft_share: float = Field(description="Time in retrieval / wall time.")
    num_identical: int


class ConcurrencyRow(_Value):
    """One strategy with a fixed number of requests in flight over the whole workload."""

    concurrency: int = Field(ge=1)
    strategy: str
    tokens_per_s: float
    speedup: float | None = Field(description="Against the baseline at the same concurrency.")
    acceptance_length: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    num_requests: int
    num_identical: int


class BenchResults(_Value):
    """Content of the file of `lookahead bench --json`, which `report` and `replay` read. load: by other programs during
    a measurement in process."""

    manifest: dict[str, Any]
    requests: list[RequestRecord]
    summary: list[SummaryRow]
    concurrency: list[ConcurrencyRow] = []
    cost_curve: list[CostPoint] = []
    warmth: Warmth = "cold"
    baseline: str = "none"
    load: MachineLoad | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Settings of the measurement; empty if the manifest has none."""
        config = self.manifest.get("config")
        return config if isinstance(config, dict) else {}


def save_json(path: Path, value: BaseModel) -> None:
    """Write a value as JSON: see `save_text`."""
    save_text(path, value.model_dump_json() + "\n")


def save_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a list of figures as JSON, one row a line: see `save_text`."""
    save_text(path, "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def save_text(path: Path, text: str) -> None:
    """Write a file atomically. Raises as `require_writable`."""
    require_writable(path)
    write_atomically(path, text)


def require_other(path: Path, *inputs: Path | None) -> None:
    """Raise UserError if the output file is one of the inputs, which would be lost."""
    if is_stream(path) or not path.exists():  # input and output can be the same terminal
        return
    if any(other and other.exists() and path.samefile(other) for other in inputs):
        raise UserError(f"{path} is the input, and would be overwritten. Name another file for the output.")


def require_writable(path: Path, *inputs: Path | None) -> None:
    """Raise UserError if an output file cannot be written, or is one of the inputs. Creates a file to find out, because
    permissions do not show a read-only file system."""
    require_other(path, *inputs)
    if str(path) == "-":
        raise UserError("The output would be a file named -. Name another file.")
    if path.is_dir():
        raise UserError(f"{path} cannot be written: it is a folder.")
    if is_stream(path):
        return
    if path.is_symlink():
        path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trial = partial_path(path)
        trial.touch()
        trial.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{path} cannot be written: {path.parent} is not a folder.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def load_results(path: Path) -> BenchResults:
    """Read bench results. Raises UserError if the file is missing or invalid."""
    if not path.exists():
        raise UserError(f"There is no file {path}; `lookahead bench --json {path}` writes one.")
    with reading(path):
        text = path.read_text(encoding="utf-8")
    try:
        return BenchResults.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise UserError(
            f"{path} is not a result of `lookahead bench --json`: {where}: {first['msg']}. "
            "Measure again with this version."
        ) from error
