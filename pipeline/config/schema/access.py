"""The parts of the section `server` that say who may ask, and for how much."""

from __future__ import annotations

from pydantic import Field

from pipeline.config.schema.base import Frozen


class ApiKey(Frozen):
    """One API key. Its holder is a tenant with drafts and limits of its own."""

    tenant: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="Name of the tenant.")
    key_sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the key in hex. `lookahead key TENANT` makes a key and this."
    )
    max_concurrent_requests: int = Field(64, ge=1, description="Requests at once; more are answered 429.")
    max_tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Tokens that may be asked for in a minute: max_tokens, and one for every four bytes of the prompt.",
    )


class GatewayConfig(Frozen):
    """The gateway: the process that takes requests from clients and passes them on to Triton."""

    enabled: bool = Field(
        True,
        description="false: clients reach Triton itself, with all its interfaces. For networks that nobody else is on.",
    )
    max_body_bytes: int = Field(8 << 20, ge=1 << 10, description="Longest body of a request; longer ones get 413.")
    max_connections: int = Field(1024, ge=1, description="HTTP connections at once; more are answered 503.")
    max_concurrent_requests: int = Field(
        256, ge=1, description="Requests at once, over all tenants; more are answered 503."
    )
    header_timeout_s: float = Field(
        10.0, gt=0, le=3600, description="How long a connection may take to send a request's headers."
    )
    body_timeout_s: float = Field(30.0, gt=0, le=3600, description="How long a request's body may take to arrive.")
    request_timeout_s: float = Field(
        600.0, gt=0, le=86400, description="Longest that a request may take; a client may ask for less."
    )
    max_namespaces: int = Field(
        1024, ge=1, description="Draft namespaces that the holder of a key may name; further ones get 400."
    )
    share_drafts: bool = Field(
        False,
        description="Let tenants draft from each other's outputs. Costs privacy: a tenant that guesses a text can "
        "measure by its speed whether another tenant has received it.",
    )
    inner_models: bool = Field(
        False,
        description="Let clients call preprocessing, tensorrt_llm and postprocessing, which know no tenants: a client "
        "can then stop another's request by its id.",
    )
