"""Makes config.pbtxt from typed values: a function per served model, which returns Triton's protobuf message, and
conversion to text and back.

Only the models with an engine differ between backends; see `Backend.target_configs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact
from pipeline.errors import RepositoryError
from pipeline.repository.contract import Tensor, model_contract
from pipeline.repository.extra_tensors import (
    LOOKAHEAD_BLS_INPUTS,
    LOOKAHEAD_BLS_OUTPUTS,
    TENSORRT_LLM_INPUTS,
    TENSORRT_LLM_OUTPUTS,
)
from pipeline.repository.names import FINGERPRINT, FRONT_MODEL, STOCK_FRONT_MODEL, TARGET_MODEL


def python_target(
    resolved: ResolvedConfig, artifact: Artifact, extended: bool = True, strict_mode: str | None = None
) -> pb.ModelConfig:
    """Config of a model with an engine in Python and the tensors of `tensorrt_llm`. One process serves all requests.
    extended: with the tensors of `extra_tensors`. strict_mode: speculative mode of the emulated TensorRT-LLM engine;
    None without emulation."""
    contract = model_contract("tensorrt_llm")
    inputs = contract.inputs + TENSORRT_LLM_INPUTS if extended else contract.inputs
    outputs = contract.outputs + TENSORRT_LLM_OUTPUTS if extended else contract.outputs
    config = new_config(TARGET_MODEL, resolved.profile.engine.max_batch_size, inputs, outputs)
    config.model_transaction_policy.decoupled = True
    # Not Triton but the model limits the queue, because it distinguishes continuations from new requests.
    set_batching(config, resolved)
    set_parameters(
        config,
        {
            # TensorRT-LLM's backend requires these four keys, and its tools read them.
            "gpt_model_type": "inflight_fused_batching",
            "tokenizer_dir": str(artifact.tokenizer_dir),
            "guided_decoding_backend": "",
            "xgrammar_tokenizer_info_path": "",
            "gpt_model_path": str(artifact.engine_dir),
            "artifact_dir": str(artifact.folder),
            "max_beam_width": "1",
            "exclude_input_in_output": "false",
            "cancellation_check_period_ms": "100",
        },
    )
    if strict_mode is not None:
        set_parameters(config, {"strict_tensorrt_llm": strict_mode})
    return config


def preprocessing(resolved: ResolvedConfig, artifact: Artifact) -> pb.ModelConfig:
    """Config of TensorRT-LLM's `preprocessing`: text to tokens."""
    contract = model_contract("preprocessing")
    config = new_config("preprocessing", resolved.profile.engine.max_batch_size, contract.inputs, contract.outputs)
    set_batching(config, resolved)
    set_queue_bound(config, resolved)
    config.instance_group[0].count = resolved.profile.scheduling.tokenizer_instances
    set_parameters(config, {"tokenizer_dir": str(artifact.tokenizer_dir), "add_special_tokens": "true"})
    return config


def postprocessing(resolved: ResolvedConfig, artifact: Artifact) -> pb.ModelConfig:
    """Config of TensorRT-LLM's `postprocessing`: tokens to text."""
    contract = model_contract("postprocessing")
    config = new_config("postprocessing", resolved.profile.engine.max_batch_size, contract.inputs, contract.outputs)
    config.dynamic_batching.SetInParent()
    config.instance_group[0].count = resolved.profile.scheduling.tokenizer_instances
    set_parameters(config, {"tokenizer_dir": str(artifact.tokenizer_dir), "skip_special_tokens": "true"})
    return config


def lookahead_bls(resolved: ResolvedConfig, artifact: Artifact, vocab_size: int) -> pb.ModelConfig:
    """Config of the front model, which clients call with text or tokens. vocab_size: of the engine."""
    contract = model_contract("tensorrt_llm_bls")
    inputs = (*_all_optional(contract.inputs), *LOOKAHEAD_BLS_INPUTS)
    outputs = contract.outputs + LOOKAHEAD_BLS_OUTPUTS
    config = new_config(FRONT_MODEL, resolved.profile.engine.max_batch_size, inputs, outputs)
    config.model_transaction_policy.decoupled = True
    config.instance_group[0].count = resolved.profile.scheduling.bls_instances
    set_parameters(
        config,
        {
            "tokenizer_dir": str(artifact.tokenizer_dir),
            "artifact_dir": str(artifact.folder),
            FINGERPRINT: artifact.manifest.fingerprint_digest,
            "vocab_size": str(vocab_size),
        },
    )
    return config


def single_response(name: str, working: pb.ModelConfig, resolved: ResolvedConfig) -> pb.ModelConfig:
    """Config of a model that forwards requests to the decoupled model `working` and sends one response, as Triton's
    `infer` requires."""
    config = new_config(name, working.max_batch_size)
    config.input.extend(working.input)
    config.output.extend(working.output)
    for tensor in (*config.input, *config.output):
        tensor.ClearField("reshape")  # forwarded requests keep the client's shape
    # Tools read the settings of an engine from the model with this name.
    set_parameters(config, {name: entry.string_value for name, entry in working.parameters.items()})
    waiting = resolved.profile.scheduling.max_queue_size
    set_parameters(config, {"model_name": working.name, "max_requests": str(working.max_batch_size + waiting)})
    return config


def ensemble(resolved: ResolvedConfig) -> pb.ModelConfig:
    """Config of TensorRT-LLM's `ensemble`: text to text in one response, through the front model and its drafts."""
    contract = model_contract("ensemble")
    config = pb.ModelConfig(name="ensemble", platform="ensemble", max_batch_size=resolved.profile.engine.max_batch_size)
    add_tensors(config, _all_optional(contract.inputs), contract.outputs)
    config.ensemble_scheduling.step.add(
        model_name=STOCK_FRONT_MODEL,
        model_version=-1,
        input_map={tensor.name: tensor.name for tensor in contract.inputs},
        output_map={tensor.name: tensor.name for tensor in contract.outputs},
    )
    return config


def _all_optional(inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Make all inputs optional. Triton's error for a missing input states only the number of inputs; the model's error
    has its name."""
    return tuple(replace(tensor, optional=True) for tensor in inputs)


def to_text(config: pb.ModelConfig) -> str:
    """Text of config.pbtxt."""
    text: str = text_format.MessageToString(config)
    return text


def read(path: Path) -> pb.ModelConfig:
    """Read a config.pbtxt. Raises RepositoryError if it cannot be read or is not valid."""
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    except OSError as error:
        raise RepositoryError(f"{path} cannot be read: {error.strerror}. Render it with `lookahead repo`.") from error
    except text_format.ParseError as error:
        raise RepositoryError(
            f"{path} is not a valid config.pbtxt: {error}. Render it again with `lookahead repo`."
        ) from error


def new_config(
    name: str,
    max_batch_size: int,
    inputs: Iterable[Tensor] = (),
    outputs: Iterable[Tensor] = (),
    backend: str = "python",
) -> pb.ModelConfig:
    """Config of a model with one instance and these tensors."""
    config = pb.ModelConfig(name=name, backend=backend, max_batch_size=max_batch_size)
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    add_tensors(config, inputs, outputs)
    return config


def add_tensors(config: pb.ModelConfig, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
    """Append inputs and outputs. The order matters, because some clients read outputs by position."""
    for tensor in inputs:
        entry = config.input.add(
            name=tensor.name,
            data_type=pb.DataType.Value(tensor.dtype),
            dims=tensor.dims,
            optional=tensor.optional,
            allow_ragged_batch=tensor.ragged,
        )
        _reshape(entry, tensor)
    for tensor in outputs:
        _reshape(
            config.output.add(name=tensor.name, data_type=pb.DataType.Value(tensor.dtype), dims=tensor.dims), tensor
        )


def _reshape(entry: pb.ModelInput | pb.ModelOutput, tensor: Tensor) -> None:
    if tensor.reshape is not None:
        entry.reshape.SetInParent()
        entry.reshape.shape.extend(tensor.reshape)


def set_batching(config: pb.ModelConfig, resolved: ResolvedConfig) -> None:
    """Set how Triton fills a batch, from the profile."""
    scheduling = resolved.profile.scheduling
    config.dynamic_batching.preferred_batch_size.append(config.max_batch_size)
    config.dynamic_batching.max_queue_delay_microseconds = scheduling.max_queue_delay_microseconds


def set_queue_bound(config: pb.ModelConfig, resolved: ResolvedConfig) -> None:
    """Make Triton refuse requests beyond the profile's queue length."""
    config.dynamic_batching.default_queue_policy.max_queue_size = resolved.profile.scheduling.max_queue_size


def set_parameters(config: pb.ModelConfig, values: Mapping[str, str]) -> None:
    """Set parameters. Triton stores them as text."""
    for name, value in values.items():
        config.parameters[name].string_value = value
