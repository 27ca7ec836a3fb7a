"""Runs one conversion with TensorRT-LLM: `python3 -m pipeline.backends.tensorrt_llm.conversion_script request.json`.

It runs in the environment of TensorRT-LLM, which may lack our requirements, so it imports only the standard library and
`tensorrt_llm`. `request.json` contains `Conversion.call`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def convert(call: Mapping[str, Any]) -> None:
    """Write the checkpoint that a call describes. Exceptions of TensorRT-LLM propagate."""
    if call["method"] == "quantize":
        _quantize(call)
    else:
        _from_hugging_face(call)


def _from_hugging_face(call: Mapping[str, Any]) -> None:
    """Convert one rank at a time, so that host memory holds the checkpoint and the weights of one rank. The ranks of a
    context-parallel group share a file, so they are added to the config after the conversion."""
    import tensorrt_llm.models
    from tensorrt_llm.mapping import Mapping as RankMapping

    model_class = getattr(tensorrt_llm.models, call["model_class"])
    output_dir = Path(call["output_dir"])
    output_dir.mkdir(parents=True, exist_ok=True)  # save_checkpoint makes no folder
    optional = {"quant_config": _quant_config(call)} if call["quant_config"] else {}
    context_ranks = call["mapping"]["cp_size"]
    files = {**call["mapping"], "cp_size": 1, "world_size": call["mapping"]["world_size"] // context_ranks}
    for rank in range(files["world_size"]):
        mapping = RankMapping(rank=rank, **files)
        # Positional, because the name of the first argument differs between families.
        model = model_class.from_hugging_face(call["hf_model_dir"], dtype=call["dtype"], mapping=mapping, **optional)
        if context_ranks > 1:
            whole = model.config.mapping
            whole.cp_size, whole.world_size = context_ranks, call["mapping"]["world_size"]
            whole.attn_tp_size = whole.attn_cp_size = -1  # the builder computes them
        model.save_checkpoint(str(output_dir), save_config=rank == 0)
        del model


def _quantize(call: Mapping[str, Any]) -> None:
    """Calibrate on the GPU, and write all ranks."""
    import tensorrt_llm.models
    from tensorrt_llm.mapping import Mapping as RankMapping

    model_class = getattr(tensorrt_llm.models, call["model_class"])
    Path(call["output_dir"]).mkdir(parents=True, exist_ok=True)
    model_class.quantize(
        call["hf_model_dir"],
        call["output_dir"],
        dtype=call["dtype"],
        mapping=RankMapping(**call["mapping"]),
        quant_config=_quant_config(call),
        **call["calibration"],
    )


def _quant_config(call: Mapping[str, Any]) -> Any:
    from tensorrt_llm.models.modeling_utils import QuantConfig
    from tensorrt_llm.quantization.mode import QuantAlgo

    return QuantConfig(**{name: QuantAlgo[algo] for name, algo in call["quant_config"].items()})


if __name__ == "__main__":
    convert(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
