"""An int8 model on disk: transformers' own config.json, and safetensors in which the weight of every linear layer is
int8 under its own name, with `<name>_scale` (float32, one per output channel) beside it.

A weight that an embedding shares with the output layer is stored once and quantized once, so both see the same values.
"""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from pipeline.engine.torch.linear_layers import Quantized, QuantizedLinear, dequantize, quantize, replace_layers
from pipeline.errors import BuildError

_SCALE = "_scale"


def save_quantized(model: PreTrainedModel, folder: Path) -> None:
    """Quantize a model and write it. Raises BuildError if it has matrices other than linear layers and embeddings."""
    linears = {id(module.weight) for module in model.modules() if type(module) is nn.Linear}
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    tensors: dict[str, torch.Tensor] = {}
    stored: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in stored:
            continue
        stored.add(id(tensor))
        if id(tensor) in linears:
            tensors[name], tensors[name + _SCALE] = quantize(tensor)
        elif tensor.ndim > 1 and id(tensor) not in embeddings:
            raise BuildError(
                f"{type(model).__name__} keeps {name} outside a linear layer, so engine.quantization = 'int8' cannot "
                "store it as int8. Use engine.quantization = 'none'."
            )
        else:
            tensors[name] = tensor.detach()
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(tensors, folder)
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def empty_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model that config.json describes, with weights that are to be written."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with no_init_weights():  # the system allocates no memory for weights that are never written
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    return model


def load_quantized(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Load the files of `save_quantized`, with `QuantizedLinear` in place of linear layers and activations of type
    dtype."""
    model = empty_model(folder, dtype)
    tensors = {
        name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()
    }
    names = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}

    def quantized(layer: nn.Module) -> QuantizedLinear | None:
        if type(layer) is not nn.Linear:
            return None
        name = names[id(layer.weight)]
        bias = None if layer.bias is None else tensors[names[id(layer.bias)]]
        return QuantizedLinear(Quantized(tensors[name], tensors[name + _SCALE]), bias)

    replace_layers(model, quantized)
    with torch.no_grad():
        for tensor_name, target in model.state_dict(keep_vars=True).items():
            tensor = tensors[names[id(target)]]
            scale = tensors.get(tensor_name + _SCALE)
            target.copy_(tensor if scale is None else dequantize(Quantized(tensor, scale), dtype))
    return model.eval()
