"""Start-up options of a gateway process, in a JSON file that only its owner can read."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pipeline.config.schema import ApiKey, Frozen, GatewayConfig

# Header that Triton's restricted interfaces require.
TRITON_KEY_HEADER = "lookahead-key"
# The same header in gRPC metadata, as Triton names it.
TRITON_GRPC_KEY = f"triton-grpc-protocol-{TRITON_KEY_HEADER}"


class TritonSpec(Frozen):
    """A Triton server behind the gateway."""

    http: str = Field(description="host:port of its HTTP interface.")
    grpc: str = Field(description="host:port of its gRPC interface.")
    metrics: str = Field(description="host:port of its metrics.")
    key: str = Field(description="Value of TRITON_KEY_HEADER that it requires; empty without a gateway.")


class DeploymentSpec(Frozen):
    """The servers behind the gateway. They can be exchanged while the gateway serves."""

    tritons: tuple[TritonSpec, ...] = Field(
        min_length=1,
        description="Triton servers. Requests for Triton go to the first one that can be reached.",
    )
    openai_http: str | None = Field(description="host:port of the OpenAI front end; None without an OpenAI API.")
    model: str = Field(description="Name of the model that the OpenAI front end serves.")
    tool_call_parser: str | None = Field(None, description="Dynamo's parser of the model's tool calls.")
    public_models: tuple[str, ...] = Field(description="Triton models that clients may call.")
    tenant_models: tuple[str, ...] = Field(description="Public models with the inputs `namespace` and `stop`.")
    max_seq_len: int = Field(description="Limit of prompt and output of one sequence, in tokens.")
    max_open_requests: int = Field(description="Number of requests that a server without others serves and queues.")
    listed_s: float = Field(
        0.0, description="Time for which the front end may know a worker whose machine is gone, in seconds."
    )


class GatewaySpec(Frozen):
    """Addresses of the gateway and of the servers behind it, API keys and limits."""

    host: str
    http_port: int
    grpc_port: int
    metrics_host: str
    metrics_port: int
    openai_port: int | None = Field(description="HTTP port of the OpenAI API; None without an OpenAI API.")
    deployment: DeploymentSpec
    api_keys: tuple[ApiKey, ...]
    config: GatewayConfig
    json_logs: bool = False


class GatewayStatus(Frozen):
    """Status of the gateway, which it writes to a file beside its spec at every change."""

    triton_http: str = Field(description="host:port of the first Triton server for new requests.")
    num_running_earlier: int = Field(description="Number of requests that run on earlier servers.")


def status_path(spec_path: Path) -> Path:
    """Path of the status file of the gateway with the spec file `spec_path`."""
    return spec_path.with_name("status.json")
