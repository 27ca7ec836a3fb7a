"""Settings of the section `server` for access: keys, tenants and limits."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.schema.base import Frozen


class ApiKey(Frozen):
    """One API key. Its holder is a tenant with its own drafts and limits."""

    tenant: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="Name of the tenant.")
    key_sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the key in hex. `lookahead key TENANT` makes both."
    )
    max_concurrent_requests: int = Field(64, ge=1, description="Limit of concurrent requests; more get status 429.")
    max_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Limit of tokens per minute: max_tokens, and one token for every four bytes of the prompt.",
    )


class GatewayConfig(Frozen):
    """The gateway: the process that receives requests from clients and forwards them to Triton."""

    enabled: bool = Field(
        True,
        description="false: clients reach all interfaces of Triton directly. For private networks only.",
    )
    max_body_bytes: int = Field(
        8 << 20, ge=1 << 10, description="Limit of the bytes of a request body; longer ones get status 413."
    )
    max_connections: int = Field(1024, ge=1, description="Limit of concurrent HTTP connections; more get status 503.")
    max_concurrent_requests: int = Field(
        256, ge=1, description="Limit of concurrent requests of all tenants; more get status 503."
    )
    header_timeout_s: float = Field(10.0, gt=0, le=3600, description="Time limit for the headers of a request.")
    body_timeout_s: float = Field(30.0, gt=0, le=3600, description="Time limit for the body of a request.")
    request_timeout_s: float = Field(
        600.0, gt=0, le=86400, description="Time limit of a request. A client can set a shorter one."
    )
    max_namespaces: int = Field(
        1024, ge=1, description="Limit of draft namespaces per tenant; further ones get status 400."
    )
    share_drafts: bool = Field(
        False,
        description="Let tenants draft from each other's outputs. This reduces privacy: a tenant that guesses a text "
        "can measure whether another tenant has received it.",
    )
    inner_models: bool = Field(
        False,
        description="Let clients call preprocessing, tensorrt_llm and postprocessing, which ignore tenants: a client "
        "can then stop the request of another client by its id.",
    )
