"""Input of all checks: a resolved config, the model's sizes, and values derived for each engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pipeline.backends.tensorrt_llm import release_data
from pipeline.backends.tensorrt_llm.shape import shape_of
from pipeline.config.schema import EngineConfig, ModelConfig, ModelShape, ResolvedConfig, TensorRTLLMConfig
from pipeline.engine.traits import Mode, RuntimeLimits

FlagValue = bool | int | str

# Modes of trtllm-build, and the names under which an engine's config.json stores them as a number.
BUILD_MODES: dict[Mode, str | None] = {
    "lookahead": "lookahead_decoding",
    "trie": "draft_tokens_external",
    "none": None,
}

# quant_algo of the checkpoint by weight format.
QUANT_ALGOS: Mapping[str, str | None] = {
    "none": None,
    "fp8": "FP8",
    "int8_wo": "W8A16",
    "int4_wo": "W4A16",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "nvfp4": "NVFP4",
}
# Weight formats that the builder's rule about KV caches counts as FP8.
FP8_LIKE = frozenset({"fp8", "w4a8_awq", "nvfp4"})
KV_QUANT_ALGOS: Mapping[str, str | None] = {"auto": None, "fp8": "FP8", "int8": "INT8"}


@dataclass(frozen=True)
class BuildContext:
    """A config with derived values. shape: the model's sizes; None if they are unknown before the download."""

    resolved: ResolvedConfig
    shape: ModelShape | None

    @property
    def model(self) -> ModelConfig:
        return self.resolved.model

    @property
    def engine(self) -> EngineConfig:
        return self.resolved.profile.engine

    @property
    def trt(self) -> TensorRTLLMConfig:
        return self.resolved.profile.tensorrt_llm

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """Speculative modes of the engines. The first engine is served as `tensorrt_llm`."""
        return ("trie", "lookahead") if self.trt.speculation == "both" else (self.trt.speculation,)

    @cached_property
    def traits(self) -> frozenset[release_data.Trait]:
        return release_data.release().traits(self.model.architecture)

    @property
    def known_shape(self) -> ModelShape:
        """The model's sizes. Call only after the rules, which refuse models without them."""
        assert self.shape is not None, "the rules refuse models of unknown shape"
        return self.shape

    @property
    def positions(self) -> str | None:
        """Kind of position embedding; None if the family has several and the model does not state its own."""
        shape = self.shape
        if "alibi" in self.traits:
            return "alibi"
        if shape is None:
            return None
        if release_data.release().model_map.get(self.model.architecture) == "BaichuanForCausalLM":
            return "rope" if shape.num_attention_heads == release_data.BAICHUAN_ROPE_HEADS else "alibi"
        is_known = "maybe_alibi" not in self.traits or "position_embedding" in shape.model_fields_set
        return shape.position_embedding if is_known else None

    @property
    def world_size(self) -> int:
        """Number of ranks of an engine. See `num_processes` for the launcher's world size."""
        ranks = self.model.parallelism
        return ranks.tensor * ranks.pipeline * self.trt.context_parallel

    @property
    def quant_algos(self) -> dict[str, str | None]:
        """Formats of weights and KV cache, as in the config.json of a checkpoint; None for the model's dtype."""
        return {
            "quant_algo": QUANT_ALGOS[self.trt.quantization],
            "kv_cache_quant_algo": KV_QUANT_ALGOS[self.trt.kv_cache_dtype],
        }

    @property
    def names_ranks(self) -> bool:
        """Whether the config of an engine lists its MPI ranks, as an orchestrator that spawns no processes requires."""
        return self.trt.orchestrator and not self.trt.spawn_processes

    @property
    def num_processes(self) -> int:
        """Number of servers that the launcher starts: in leader mode one per rank. An orchestrator spawns the ranks of
        all engines, or is rank 0 in addition to them."""
        if self.names_ranks:
            return 1 + len(self.modes) * self.world_size
        return 1 if self.trt.orchestrator else self.world_size

    def participant_ids(self, index: int) -> str | None:
        """MPI ranks of engine number `index`, in the format of its Triton model; None without an orchestrator."""
        if not self.names_ranks:
            return None
        first = 1 + index * self.world_size
        return ",".join(str(rank) for rank in range(first, first + self.world_size))

    def max_draft_len(self, mode: Mode) -> int:
        """`max_draft_len` of the engine; for a lookahead engine, computed from W, N and G. The served instance has the
        same W, N and G, and a request may only lower them."""
        external = self.trt.max_external_draft_len
        return {"lookahead": self.resolved.lookahead.max_draft_len, "trie": external, "none": 0}[mode]

    def asked_seq_len(self, mode: Mode) -> int:
        """Value of --max_seq_len. The builder adds max_draft_len to it, but engine.max_seq_len includes the drafts."""
        return self.engine.max_seq_len - self.max_draft_len(mode)

    def limited_num_tokens(self, mode: Mode) -> int:
        """Limit of tokens per pass before the builder makes room for drafts, and its limit of opt_num_tokens:
        engine.max_num_tokens, or the total length of all sequences if that is less. With fused context attention at
        least a KV cache block."""
        limit = min(self.engine.max_num_tokens, self.asked_seq_len(mode) * self.engine.max_batch_size)
        return max(limit, self.trt.tokens_per_block if self.enabled("context_fmha") else 1)

    def step_tokens(self, mode: Mode) -> int:
        """Tokens of a pass in which every sequence of a full batch decodes with all its drafts."""
        return self.engine.max_batch_size * (self.max_draft_len(mode) + 1)

    def max_num_tokens(self, mode: Mode) -> int:
        """Limit of tokens per pass of the built engine. With drafts the builder makes room for a full batch of them,
        even if that is more than the total length of all sequences."""
        return max(self.limited_num_tokens(mode), self.step_tokens(mode) if mode != "none" else 0)

    def limits(self, mode: Mode) -> RuntimeLimits:
        """Limits of the built engine at run time."""
        return RuntimeLimits(
            max_seq_len=self.engine.max_seq_len,
            max_num_tokens=self.max_num_tokens(mode),
            max_draft_len=self.max_draft_len(mode),
            chunked_context=self.trt.enable_chunked_context,
        )

    def flag(self, name: str) -> FlagValue | None:
        """Value of an option of trtllm-build: the user's, else the default."""
        default: FlagValue | None = release_data.release().build_flags[name].default
        return self.trt.build_flags.get(name, default)

    def enabled(self, name: str) -> bool:
        """Whether a switch among the build options is on."""
        return self.flag(name) in ("enable", True)

    def parameter(self, name: str) -> bool | int | float | str | None:
        """Value of a further parameter of the served model; None if the user did not set it."""
        return self.trt.parameters.get(name)

    def kv_cache_reuse(self, mode: Mode) -> bool:
        """Whether an instance keeps the KV cache of finished requests. Off by default for lookahead, as in NVIDIA's
        tests, and for models with a recurrent state, which the cache does not contain."""
        if self.trt.enable_kv_cache_reuse is not None:
            return self.trt.enable_kv_cache_reuse
        return mode != "lookahead" and "recurrent" not in self.traits and self.paged_context_off is None

    @property
    def paged_context_off(self) -> str | None:
        """Reason why the engine has no paged context attention; None if it has."""
        trt = self.trt
        if self.resolved.dtype == "float32":  # no error in the builder; the attention plugin falls back at run time
            return "model.gpu_dtype = 'float32' leaves attention unfused; the fused kernels take float16 and bfloat16"
        if not self.enabled("context_fmha"):
            return "tensorrt_llm.build_flags.context_fmha = 'disable' switches it off"
        if not self.enabled("use_paged_context_fmha"):
            return "tensorrt_llm.build_flags.use_paged_context_fmha = 'disable' switches it off"
        if trt.kv_cache_dtype == "int8":
            return "tensorrt_llm.kv_cache_dtype = 'int8' switches it off"
        if trt.kv_cache_dtype == "fp8" and trt.quantization not in FP8_LIKE:
            return (
                "tensorrt_llm.kv_cache_dtype = 'fp8' switches it off unless tensorrt_llm.quantization is fp8, w4a8_awq "
                f"or nvfp4 (found '{trt.quantization}')"
            )
        if trt.kv_cache_dtype == "fp8" and trt.compute_capability < 89:
            return f"an FP8 KV cache switches it off on GPUs older than 89 (found {trt.compute_capability})"
        return None

    @property
    def fp8_context_off(self) -> str | None:
        """Reason why the engine cannot compute context attention in FP8; None if it can."""
        if self.resolved.dtype == "float32":
            return self.paged_context_off
        if not self.enabled("context_fmha"):
            return "tensorrt_llm.build_flags.context_fmha = 'disable' switches it off"
        if self.trt.quantization not in FP8_LIKE:
            return f"tensorrt_llm.quantization is '{self.trt.quantization}', not fp8, w4a8_awq or nvfp4"
        if self.trt.compute_capability < 89:
            return f"it needs a GPU of 89 or newer (found {self.trt.compute_capability})"
        if self.paged_context_off is None and self.trt.kv_cache_dtype != "fp8":
            return (
                f"tensorrt_llm.kv_cache_dtype is '{self.trt.kv_cache_dtype}', not fp8, and the builder switches it off "
                "beside paged context attention"
            )
        return None

    @property
    def fp8_context_forced(self) -> bool:
        """Whether the builder enables FP8 context attention without request, as with a paged FP8 KV cache."""
        return self.paged_context_off is None and self.fp8_context_off is None


def build_context_of(resolved: ResolvedConfig) -> BuildContext:
    """Make the context of a config. Reads the config.json of a local checkpoint, and downloads nothing."""
    return BuildContext(resolved, shape_of(resolved.model))
