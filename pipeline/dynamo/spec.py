"""Start-up options of a worker process, passed as one JSON argument."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.schema import Frozen
from pipeline.engine.fingerprint import Flag, digest_of

# Dynamo's environment variable with the namespace within which workers and front ends find each other, and our default.
# Dynamo's Kubernetes operator sets one for each deployment.
DYNAMO_NAMESPACE, NAMESPACE = "DYN_NAMESPACE", "lookahead"
# Dynamo's environment variable with the address on which workers listen; by default that of the machine.
RPC_HOST = "DYN_TCP_RPC_HOST"
# Environment variable with the access keys of the Triton servers, separated by commas. They are not in the spec,
# because other users can read a command line.
TRITON_KEYS = "LOOKAHEAD_TRITON_KEYS"


# Key of a worker's `Membership` in the runtime data of its model card.
MEMBERSHIP = "lookahead"
# Key of `WorkerSpec.has_front_end` there.
HAS_FRONT_END = "lookahead_has_front_end"
# Length of a digest in a name or a message.
DIGITS = 12


class Membership(Frozen):
    """The fleet of a worker, and what the tokens of its outputs depend on. Requests move only between workers that
    agree in both."""

    fleet: str = Field(description="Value of DYN_NAMESPACE.")
    engine: dict[str, Flag] = Field(description="See `membership_of`.")

    @property
    def namespace(self) -> str:
        """Dynamo's namespace of the workers that agree, and of their front ends."""
        return f"{self.fleet}-{digest_of(self.engine)[:DIGITS]}"


class WorkerSpec(Frozen):
    """Options of the worker of one Triton server."""

    triton_urls: tuple[str, ...] = Field(
        description="host:port of the HTTP interface of the worker's own Triton server, then of those for failover."
    )
    model: str = Field(description="Model name in the OpenAI API.")
    card_dir: str = Field(description="Folder with the model's configuration, tokenizer and chat template.")
    discovery: str = Field("file", description="Value of `server.discovery`.")
    membership: Membership = Field(description="Published in the model card.")
    has_front_end: bool = Field(True, description="Whether a front end of the fleet runs beside the worker.")
    has_other_machines: bool = Field(False, description="Whether workers of other machines can continue a request.")
    max_seq_len: int = Field(description="Limit of prompt and output of one sequence, in tokens.")
    max_batch_size: int = Field(description="Limit of sequences in a batch.")
    prompt_prefix: tuple[int, ...] = Field((), description="Tokens in front of a text without a chat template: BOS.")
    prompt_ignore_length: bool = Field(description="Whether the engine can exclude the prompt from penalties.")
    tool_call_parser: str | None = Field(None, description="Dynamo's parser of the model's tool calls.")
    entries_path: str = Field(description="File for the worker's discovery entries, see `GuardSpec.leftovers_path`.")
    is_traced: bool = Field(False, description="Whether Triton's models send spans to a collector.")
    startup_timeout_s: float = Field(300.0, description="Time limit for Triton to become ready, in seconds.")
