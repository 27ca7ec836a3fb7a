"""A checkpoint of random weights from a transformers config class, with a byte-level tokenizer; the same seed, the
same bytes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path

from pipeline.checkpoint.architectures import check_architecture
from pipeline.checkpoint.byte_tokenizer import byte_tokenizer
from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.disk import require_space, whole_folder
from pipeline.checkpoint.local import open_folder
from pipeline.config.schema import RandomCheckpoint
from pipeline.errors import CheckpointError

# Changes when this file makes other bytes from the same settings.
_RECIPE = 1


def random_hash(source: RandomCheckpoint, architecture: str) -> str:
    """Known without making the checkpoint. The libraries count because they draw the weights."""
    libraries = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")}
    parts = [_RECIPE, architecture, source.model_dump(mode="json"), libraries]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def make_random(source: RandomCheckpoint, architecture: str, num_parameters: int, cache_dir: Path) -> Checkpoint:
    """Made once, then found in the cache. Raises CheckpointError if the config class refuses the settings."""
    check_architecture(architecture, "The model config's architecture")
    content_hash = random_hash(source, architecture)
    folder = cache_dir / "random" / content_hash[:16]
    if not (folder / "config.json").is_file():
        require_space(folder, 4 * num_parameters, "Making a random checkpoint", CheckpointError)
        with whole_folder(folder) as partial:
            _write(source, architecture, partial)
    return open_folder(folder, architecture, cache_dir, content_hash)


def _write(source: RandomCheckpoint, architecture: str, folder: Path) -> None:
    import torch
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    vocab_size, max_len = source.config.get("vocab_size"), source.config.get("max_position_embeddings")
    if not isinstance(vocab_size, int) or not isinstance(max_len, int):
        raise CheckpointError("A random checkpoint's config needs vocab_size and max_position_embeddings as integers.")
    tokenizer = byte_tokenizer(vocab_size, max_len)
    model_class = getattr(transformers, architecture)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    with torch.random.fork_rng():
        torch.manual_seed(source.seed)
        try:
            model = model_class(model_class.config_class(**{**special, **source.config}))
        except (TypeError, ValueError, RuntimeError, AttributeError, StrictDataclassError) as error:
            reason = str(error).strip().splitlines()[-1].strip().rstrip(".")
            raise CheckpointError(f"{architecture} cannot be made from checkpoint.config: {reason}.") from error
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
