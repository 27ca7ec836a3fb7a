"""A model under a profile: the input of every build and server."""

from __future__ import annotations

from pipeline.config.registry import BackendName
from pipeline.config.schema.base import Device, Dtype, Frozen
from pipeline.config.schema.lookahead import LookaheadConfig
from pipeline.config.schema.model import ModelConfig
from pipeline.config.schema.profile import ProfileConfig


class ResolvedConfig(Frozen):
    """A model under a profile, with every "auto" replaced by a value: the input of every build and server."""

    model: ModelConfig
    profile: ProfileConfig
    backend: BackendName = "torch"
    device: Device
    dtype: Dtype
    lookahead: LookaheadConfig

    def with_settings(self, section: str, **settings: object) -> ResolvedConfig:
        """The same config with other settings in a section of its profile. They are not validated."""
        changed = getattr(self.profile, section).model_copy(update=settings)
        return self.model_copy(update={"profile": self.profile.model_copy(update={section: changed})})

    @property
    def weight_type(self) -> str:
        """Type of the engine's weights, for messages."""
        quantization = self.profile.engine.quantization
        return self.dtype if quantization == "none" else quantization

    @property
    def ranks(self) -> tuple[str, int]:
        """The setting that distributes the torch engine over processes, and their number; at least one of the two
        settings is 1."""
        tensor, parallel = self.model.parallelism.tensor, self.profile.engine.lookahead_parallel
        return ("model.parallelism.tensor", tensor) if tensor > 1 else ("engine.lookahead_parallel", parallel)
