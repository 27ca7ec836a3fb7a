"""Schema of the settings: types of a model file, a profile file, and both together.

Values are frozen, unknown keys are refused, and each field has a description and bounds. `loading` reads YAML into
these types. `resolution` combines a model with a profile and replaces every "auto".
"""

from pipeline.config.schema.base import Device, Dtype, Frozen, Retrieval, Strategy
from pipeline.config.schema.drafting import DraftingConfig, SourceConfig
from pipeline.config.schema.lookahead import LookaheadConfig
from pipeline.config.schema.model import (
    CheckpointSource,
    GgufCheckpoint,
    HubCheckpoint,
    LocalCheckpoint,
    ModelConfig,
    ModelShape,
    Parallelism,
    RandomCheckpoint,
    WheelCheckpoint,
)
from pipeline.config.schema.profile import (
    ApiKey,
    EngineConfig,
    GatewayConfig,
    ProfileConfig,
    SchedulingConfig,
    ServerConfig,
)
from pipeline.config.schema.resolved import ResolvedConfig
from pipeline.config.schema.source_registry import (
    SOURCE_ROWS,
    PromptDraftConfig,
    RecyclingDraftConfig,
    SourceRow,
    SuppliedDraftConfig,
    TrieDraftConfig,
    WindowDraftConfig,
    carries,
    kinds_for,
    kinds_on,
)
from pipeline.config.schema.tensorrt_llm import TensorRTLLMConfig
