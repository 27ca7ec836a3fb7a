"""What a gateway process is started with: one JSON file that only its owner can read."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.schema import ApiKey, Frozen, GatewayConfig

# Header that Triton's restricted interfaces ask for.
TRITON_KEY_HEADER = "lookahead-key"
# Triton looks for its key under another name in the metadata of gRPC.
TRITON_GRPC_KEY = f"triton-grpc-protocol-{TRITON_KEY_HEADER}"


class GatewaySpec(Frozen):
    """Where the gateway listens, what stands behind it, and whom it serves."""

    host: str
    http_port: int
    grpc_port: int
    openai_port: int | None = Field(description="A second HTTP port, for OpenAI clients; None for no OpenAI API.")
    triton_http: str = Field(description="host:port of Triton's HTTP interface.")
    triton_grpc: str = Field(description="host:port of Triton's gRPC interface.")
    triton_key: str = Field(description="Value of TRITON_KEY_HEADER that Triton asks for.")
    openai_http: str | None = Field(description="host:port of the OpenAI front end.")
    public_models: tuple[str, ...] = Field(description="Models that clients may call.")
    tenant_models: tuple[str, ...] = Field(description="Those of them that take a namespace.")
    max_seq_len: int
    api_keys: tuple[ApiKey, ...]
    config: GatewayConfig
