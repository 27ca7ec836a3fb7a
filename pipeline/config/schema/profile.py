"""Schema of a profile file."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from pipeline.config.registry import BackendOrAuto
from pipeline.config.schema.base import Frozen
from pipeline.config.schema.drafting import DraftingConfig
from pipeline.config.schema.tensorrt_llm import TensorRTLLMConfig


class EngineConfig(Frozen):
    """Sizes for which an engine is built."""

    max_batch_size: int = Field(8, ge=1, le=4096, description="Limit of sequences in a batch.")
    max_seq_len: int = Field(2048, ge=16, description="Limit of prompt, output and drafts of one sequence, in tokens.")
    max_num_tokens: int = Field(2048, ge=1, description="Limit of tokens in a pass over all sequences.")
    max_draft_tokens: int = Field(
        64, ge=0, le=2048, description="Limit of nodes in a draft tree; 0 builds without drafts."
    )
    prefill_chunk: int = Field(512, ge=1, description="Prompt tokens of one sequence per pass.")
    quantization: Literal["none", "int8"] = Field(
        "none",
        description="Format of the torch engine's linear layers. int8: weights with a scale per output channel. On a "
        "CPU in float32 the families of the lean pass also quantize each activation row, and sum exactly in integers "
        "(docs/cpu-engine.md). TensorRT-LLM's formats are under tensorrt_llm.quantization.",
    )
    lookahead_parallel: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of processes of the torch backend with a copy of the model each, which split every draft "
        "tree (lookahead parallelism). In process only: bench, verify, tune, experiments.",
    )
    strict_tensorrt_llm: bool = Field(
        False,
        description="Torch engine only: emulate the inputs, outputs and refusals of the TensorRT-LLM engine in the "
        "section tensorrt_llm, for tests of its callers.",
    )


class SchedulingConfig(Frozen):
    """How requests share the engine."""

    max_queue_size: int = Field(128, ge=1, description="Length of the queue; further requests get the error 'busy'.")
    max_queue_delay_microseconds: int = Field(0, ge=0, description="Time limit of Triton to fill a batch.")
    bls_instances: int = Field(1, ge=1, le=64, description="Number of processes of the BLS model.")
    tokenizer_instances: int = Field(
        1, ge=1, le=64, description="Number of processes of preprocessing, and of postprocessing."
    )


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
    max_connections: int = Field(
        1024,
        ge=1,
        description="Limit of concurrent HTTP connections, and of gRPC calls. Further connections replace those that "
        "wait for a request; without such, they get status 503, as do further calls. A key has half of the calls at "
        "most, if there are others.",
    )
    max_concurrent_requests: int = Field(
        256, ge=1, description="Limit of concurrent requests of all tenants; more get status 503."
    )
    max_logits_bytes: int = Field(
        64 << 20,
        ge=0,
        description="Limit of the logits of one output (return_context_logits, return_generation_logits), also "
        "without the gateway; more get status 400. In JSON they take twenty times as much memory.",
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
        description="Let clients call all models, also those that ignore tenants: preprocessing, postprocessing, "
        "ensemble, tensorrt_llm and tensorrt_llm_engine. A client can then stop the request of another client by its "
        "id.",
    )


def _ipv4_address(host: str) -> str:
    try:
        return str(IPv4Address(host))
    except ValueError:
        example = "such as 127.0.0.1 or 0.0.0.0"
        raise ValueError(f"found {host!r}; should be an IPv4 address of this machine, {example}") from None


class ServerConfig(Frozen):
    """Server processes and their addresses. Port 0 selects a free port."""

    host: Annotated[str, AfterValidator(_ipv4_address)] = Field(
        "127.0.0.1", description="IPv4 address to listen on; 0.0.0.0 for all."
    )
    http_port: int = Field(8000, ge=0, le=65535, description="Port of the HTTP interface.")
    grpc_port: int = Field(8001, ge=0, le=65535, description="Port of the gRPC interface.")
    metrics_port: int = Field(8002, ge=0, le=65535, description="Port of the Prometheus metrics.")
    openai: bool = Field(
        True, description="Start NVIDIA Dynamo's OpenAI API in front of Triton; needs the extra [dynamo]."
    )
    openai_port: int = Field(8080, ge=0, le=65535, description="Port of the OpenAI API.")
    replicas: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of Triton servers on this machine, each with a worker, behind one OpenAI API.",
    )
    discovery: Literal["file", "etcd", "kubernetes"] = Field(
        "file",
        description="Service discovery of a fleet. file: a folder, for one machine or a shared disk. etcd, "
        "kubernetes: many machines; set as Dynamo documents it (ETCD_ENDPOINTS, DYN_KUBE_DISCOVERY_MODE).",
    )
    startup_timeout_s: float = Field(300.0, gt=0, description="Time limit for the models to become ready.")
    max_restarts: int = Field(
        3, ge=0, description="Limit of restarts of a crashed server within ten minutes. Afterwards it stays down."
    )
    api_keys: tuple[ApiKey, ...] = Field((), description="API keys. If empty, all clients are served as one tenant.")
    side_channel_safe: bool = Field(
        False,
        description="Hide the acceptance of drafts: responses of a fixed number of tokens, without draft statistics; "
        "metrics on the loopback address only. Protects against the attack of arXiv 2411.01076.",
    )
    gateway: GatewayConfig = GatewayConfig()
    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[A-Za-z0-9._-]+(:[0-9]+)?$",
        description="OpenTelemetry collector for OTLP over HTTP, e.g. http://collector:4318. It receives spans "
        "of front end, workers, BLS model and engine, without prompts and outputs.",
    )
    json_logs: bool = Field(False, description="Logs of gateway, front end and workers as JSON lines.")

    @property
    def metrics_host(self) -> str:
        """Address of the metrics port."""
        return "127.0.0.1" if self.side_channel_safe else self.host

    @field_validator("api_keys")
    @classmethod
    def _keys_and_tenants_differ(cls, keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
        for name in ("tenant", "key_sha256"):
            values = [getattr(key, name) for key in keys]
            if twice := next((value for value in values if values.count(value) > 1), None):
                raise ValueError(f"{name} {twice!r} occurs twice; each key and each tenant may be listed once")
        return keys


class ProfileConfig(Frozen):
    """One profile: engine sizes, drafting, scheduling, server."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name on the command line; the file name without .yaml."
    )
    description: str = Field("", description="One line for `lookahead profiles`.")
    backend: BackendOrAuto = Field(
        "auto",
        description="Engine backend: torch, tensorrt_llm, or one that an installed package adds. auto: tensorrt_llm "
        "where it is installed beside a fitting GPU, else torch.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device of the torch backend. auto: cuda where torch finds one, else cpu."
    )
    engine: EngineConfig = EngineConfig()
    drafting: DraftingConfig = DraftingConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    server: ServerConfig = ServerConfig()
    tensorrt_llm: TensorRTLLMConfig = TensorRTLLMConfig()
