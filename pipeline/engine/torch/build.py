"""Checkpoint -> files of the torch engine: weights as safetensors in the resolved dtype, and the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.checkpoint.architectures import LEAN_ARCHITECTURES, UNQUANTIZED, check_architecture
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.convert import load_weights, write_tokenizer
from pipeline.checkpoint.disk import gigabytes, require_space
from pipeline.checkpoint.model_config import check_config as check_model_config
from pipeline.checkpoint.model_config import check_positions, read_config
from pipeline.config.schema import Dtype, ResolvedConfig
from pipeline.engine.artifact import ENGINE, TOKENIZER
from pipeline.engine.backend import Note
from pipeline.engine.fingerprint import Fingerprint, Flag, cpu_name, device_architecture, digest_of, library_versions
from pipeline.engine.memory import available_bytes, require_memory
from pipeline.engine.torch.lean.plan import SMOOTHING_VERSION, lean_kind
from pipeline.errors import BuildError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Libraries whose version affects the results of an engine.
LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers")
_BYTES_PER_PARAMETER: dict[Dtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
# The tokenizer and the small files.
_OTHER_BYTES = 32 << 20


def check(resolved: ResolvedConfig) -> None:
    """Raise CheckpointError for an unsupported architecture, BuildError for an architecture or device without int8 if
    int8 is requested."""
    architecture = resolved.model.architecture
    check_architecture(architecture, f"The model {resolved.model.name}")
    if resolved.model.parallelism.tensor > 1:
        _check_tensor_parallel(architecture)
    if not _is_int8(resolved):
        return
    if architecture in UNQUANTIZED:
        raise BuildError(
            f"engine.quantization = 'int8' is not supported for the model {resolved.model.name}: {architecture} "
            f"{UNQUANTIZED[architecture]}. Use engine.quantization = 'none'."
        )
    if resolved.device != "cpu":
        raise BuildError(
            f"engine.quantization = 'int8' runs on the CPU only so far, and the device is {resolved.device}. "
            "Use engine.quantization = 'none', or device: cpu."
        )
    if resolved.dtype != "float32":
        raise BuildError(
            f"engine.quantization = 'int8' computes in float32, and model.dtype is '{resolved.dtype}'. Use model.dtype "
            "= 'float32': the weights are int8 in any case."
        )


def check_config(resolved: ResolvedConfig, folder: Path, gguf_file: str | None = None) -> PretrainedConfig:
    """Read the transformers config in a folder. Raises CheckpointError if the torch engine does not support it."""
    config = read_config(folder, resolved.model.architecture, gguf_file)
    where = str(folder / (gguf_file or ""))
    check_model_config(config, where)
    check_positions(config, resolved.model.max_position_embeddings, where)
    return config


def plan(resolved: ResolvedConfig) -> Mapping[str, Any]:
    """Size of the weights, and the code that computes a pass."""
    size = gigabytes(stored_bytes(resolved))
    return {"weights": f"{size} of {resolved.weight_type} safetensors", "pass": _pass(resolved)}


def fingerprint(resolved: ResolvedConfig, checkpoint_hash: str) -> Fingerprint:
    """Fingerprint of a torch engine built now on this machine. Raises BuildError if a library or the device is
    missing."""
    # An engine does not depend on the number of processes.
    sizes = resolved.profile.engine.model_dump(mode="json", exclude={"lookahead_parallel"})
    flags: dict[str, Flag] = {f"engine.{name}": value for name, value in sizes.items()} | {"pass": _pass(resolved)}
    if lean_kind(resolved) == "int8":
        flags["smoothing"] = SMOOTHING_VERSION
    libraries, device = library_versions("torch", LIBRARIES), device_architecture(resolved.device)
    return Fingerprint.of(resolved, checkpoint_hash, libraries, device, flags)


def files_digest(fingerprint: Fingerprint) -> str:
    """Hash of all settings that engine/ and tokenizer/ depend on; sizes, drafts and the device are not among them."""
    names = ("format", "checkpoint", "architecture", "backend", "libraries", "dtype")
    flags = ("engine.quantization", "pass", "smoothing")
    form = {name: fingerprint.flags[name] for name in flags if name in fingerprint.flags}
    return digest_of({**{name: getattr(fingerprint, name) for name in names}, **form})


def token_entries(fingerprint: Fingerprint) -> dict[str, Flag]:
    """Entries that the tokens of an output depend on; sizes and drafts are not among them."""
    fields = ("checkpoint", "architecture", "backend", "device", "dtype")
    flags = ("engine.quantization", "engine.strict_tensorrt_llm", "pass")
    found = fingerprint.entries()
    entries = {name: found[name] for name in (*fields, *fingerprint.libraries, *flags)}
    if "smoothing" in found:
        entries["engine.quantization"] = f"{found['engine.quantization']}, smoothing {found['smoothing']}"
    # Other passes on a CPU sum in an order that depends on its instructions.
    has_same_bits = (found["pass"], found["dtype"]) == ("lean", "float32")
    if fingerprint.device.startswith("cpu") and not has_same_bits:
        entries["processor"] = cpu_name()
    return entries


def weight_bytes(resolved: ResolvedConfig) -> int:
    """Size of the weights in the resolved dtype, in which a build holds them in memory."""
    return resolved.model.num_parameters * _BYTES_PER_PARAMETER[resolved.dtype]


def stored_bytes(resolved: ResolvedConfig) -> int:
    """Approximate size of the weights on disk."""
    return resolved.model.num_parameters if _is_int8(resolved) else weight_bytes(resolved)


def require_resources(resolved: ResolvedConfig, folder: Path) -> None:
    """Raise BuildError if there is not enough disk space or memory. The message names a setting that fits, if any."""
    require_space(folder, stored_bytes(resolved) + _OTHER_BYTES, f"The engine of {resolved.model.name}", BuildError)
    purpose = f"Building {resolved.model.name} in {resolved.dtype}"
    require_memory(weight_bytes(resolved), purpose, _memory_remedy(resolved, available_bytes()), BuildError)


def _memory_remedy(resolved: ResolvedConfig, available: int) -> str:
    """Advice: a setting whose build fits into the available memory, else other machines, backends or models."""
    half = resolved.model.num_parameters * _BYTES_PER_PARAMETER["bfloat16"]
    key = "model.dtype" if resolved.device == "cpu" else "model.gpu_dtype"
    if half < weight_bytes(resolved) and half <= available:
        without = "--set engine.quantization=none " if _is_int8(resolved) else ""  # int8 needs float32
        return f"Use {without}--set {key}=bfloat16 ({gigabytes(half)})."
    return (
        f"No setting makes the build fit here: in bfloat16 it holds {gigabytes(half)}. Build on a machine with more "
        f"memory (engine.quantization=int8 makes an engine of {gigabytes(resolved.model.num_parameters)} there), use "
        "backend=tensorrt_llm on a machine with a GPU, or use a smaller model."
    )


def write_engine(resolved: ResolvedConfig, checkpoint: Checkpoint, note: Note, folder: Path) -> None:
    """Write engine/ and tokenizer/ below folder. Raises CheckpointError if the checkpoint does not load, BuildError if
    it cannot be quantized as requested."""
    config = check_config(resolved, checkpoint.folder, checkpoint.gguf_file)
    write_tokenizer(checkpoint, folder / TOKENIZER)
    model = load_weights(checkpoint, config, resolved.dtype)
    kind = lean_kind(resolved)
    if kind is not None:
        from pipeline.engine.torch.lean.layout import save_lean  # imports torch

        texts = _smoothing_texts(folder / TOKENIZER, config) if kind == "int8" else ()
        if save_lean(model, kind, folder / ENGINE, texts):
            return
    if _is_int8(resolved):
        from pipeline.engine.torch.quantized_files import save_quantized  # imports torch

        save_quantized(model, folder / ENGINE)
    else:
        model.save_pretrained(folder / ENGINE)


def _smoothing_texts(tokenizer_dir: Path, config: PretrainedConfig) -> list[list[int]]:
    from transformers import AutoTokenizer

    from pipeline.engine.torch.lean.smoothing import smoothing_texts

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir, local_files_only=True)
    return smoothing_texts(tokenizer, config.vocab_size, config.max_position_embeddings)


def _check_tensor_parallel(architecture: str) -> None:
    import transformers

    if not getattr(transformers, architecture).config_class.base_model_tp_plan:
        raise BuildError(
            f"model.parallelism.tensor needs a tensor-parallel plan in transformers, and there is none for "
            f"{architecture}. Use model.parallelism.tensor = 1."
        )


def _pass(resolved: ResolvedConfig) -> str:
    """The code of a pass under these settings. transformers computes a model with an unusual config.json in any
    case."""
    if lean_kind(resolved) is not None:
        return "lean"
    of_gpu = resolved.device == "cuda" and resolved.model.architecture in LEAN_ARCHITECTURES
    return "gpu" if of_gpu and resolved.model.parallelism.tensor == 1 else "transformers"


def _is_int8(resolved: ResolvedConfig) -> bool:
    return resolved.profile.engine.quantization == "int8"
