"""What a worker process is started with, as one JSON argument."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config.schema import Frozen

# Dynamo's name for the group of workers and front ends that see each other.
NAMESPACE = "lookahead"
# Variable with the key that Triton asks for; empty for none. A command line can be read by other users.
TRITON_KEY = "LOOKAHEAD_TRITON_KEY"
Discovery = Literal["file", "etcd", "kubernetes"]


class WorkerSpec(Frozen):
    """One worker beside one Triton server."""

    triton_url: str = Field(description="host:port of Triton's gRPC service.")
    model: str = Field(description="Name under which clients ask for the model.")
    card_dir: str = Field(description="Folder with the model's configuration, tokenizer and chat template.")
    discovery: Discovery = "file"
    max_seq_len: int = Field(description="Prompt + output of one sequence.")
    max_batch_size: int = Field(description="Sequences computed together.")
    prompt_ignore_length: bool = Field(description="Whether the engine can leave the prompt out of penalties.")
    startup_timeout_s: float = Field(300.0, description="How long Triton may take to get ready.")
