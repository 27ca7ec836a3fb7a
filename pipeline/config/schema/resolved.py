"""A model under a profile: the one value from which everything is built and served."""

from __future__ import annotations

from pipeline.config.registry import BackendName
from pipeline.config.schema.base import Device, Dtype, Frozen
from pipeline.config.schema.lookahead import LookaheadConfig
from pipeline.config.schema.model import ModelConfig
from pipeline.config.schema.profile import ProfileConfig


class ResolvedConfig(Frozen):
    """A model under a profile, every "auto" settled: the one value from which everything is built and served."""

    model: ModelConfig
    profile: ProfileConfig
    backend: BackendName = "torch"
    device: Device
    dtype: Dtype
    lookahead: LookaheadConfig

    @property
    def ranks(self) -> tuple[str, int]:
        """The setting that spreads the torch engine over processes, and their number; one or the other is 1."""
        tensor, parallel = self.model.parallelism.tensor, self.profile.engine.lookahead_parallel
        return ("model.parallelism.tensor", tensor) if tensor > 1 else ("engine.lookahead_parallel", parallel)
