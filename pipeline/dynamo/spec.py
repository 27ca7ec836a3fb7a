"""Configuration of a worker process, as one JSON argument."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config.schema import Frozen

# Dynamo's name for the group of workers and front ends that see each other.
NAMESPACE = "lookahead"
# Variable with the keys that the Triton servers ask for, by commas; empty for none. A command line can be read by other
# users.
TRITON_KEYS = "LOOKAHEAD_TRITON_KEYS"
# Variable with the folder by which processes find each other; set by users who share one between machines.
FILE_KV = "DYN_FILE_KV"
Discovery = Literal["file", "etcd", "kubernetes"]


class WorkerSpec(Frozen):
    """One worker beside one Triton server."""

    triton_urls: tuple[str, ...] = Field(
        description="host:port of the gRPC service of its own Triton server, then of those that stand in for it."
    )
    model: str = Field(description="Name under which clients ask for the model.")
    card_dir: str = Field(description="Folder with the model's configuration, tokenizer and chat template.")
    discovery: Discovery = "file"
    max_seq_len: int = Field(description="Prompt + output of one sequence.")
    max_batch_size: int = Field(description="Sequences computed together.")
    prompt_ignore_length: bool = Field(description="Whether the engine can leave the prompt out of penalties.")
    tool_call_parser: str | None = Field(None, description="Dynamo's parser of the model's own tool calls.")
    entries_path: str = Field(description="File to write the names of its discovery entries to.")
    is_traced: bool = Field(False, description="Whether Triton's models send spans to a collector.")
    startup_timeout_s: float = Field(300.0, description="How long Triton may take to get ready.")
