"""Baselines: transformers' `generate`, greedy and with prompt lookup, on the same weights."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import torch

from pipeline.bench.contenders.contender import Contender, greedy_measurement
from pipeline.bench.data.workload import Prompt
from pipeline.bench.report.results import MeasuredRequest
from pipeline.config.schema import Device, Dtype
from pipeline.decoding.request import GenerationRequest
from pipeline.engine.torch.lean.plan import read_plan
from pipeline.engine.torch.linear_layers import pack_linears
from pipeline.engine.torch.quantized_files import load_quantized

BASELINES = ("hf", "hf-prompt-lookup")
PROMPT_LOOKUP_NUM_TOKENS = 10


class HuggingFaceBaseline(Contender):
    """`model.generate` without sampling (`check_plan` refuses other requests), from an empty cache. A step is a forward
    pass. max_seq_len: limit of prompt and output, the same as our engine's, so that outputs end at the same length."""

    def __init__(self, name: str, model: Any, max_seq_len: int, prompt_lookup_num_tokens: int | None) -> None:
        self.name = name
        self._model = model
        self._max_seq_len = max_seq_len
        self._prompt_lookup_num_tokens = prompt_lookup_num_tokens

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        watch = _Watch()
        prompt_ids = torch.as_tensor(request.prompt_ids, dtype=torch.int64, device=self._model.device)[None]
        with torch.inference_mode(), self._model.register_forward_pre_hook(watch.count_input, with_kwargs=True):
            started = time.perf_counter()
            output = self._model.generate(
                prompt_ids,
                attention_mask=torch.ones_like(prompt_ids),
                do_sample=False,
                max_new_tokens=min(request.max_new_tokens, self._max_seq_len - len(request.prompt_ids)),
                eos_token_id=sorted(request.end_ids) or None,
                pad_token_id=min(request.end_ids, default=0),
                prompt_lookup_num_tokens=self._prompt_lookup_num_tokens,
                streamer=watch,
            )
            output_ids = output[0, prompt_ids.shape[1] :].tolist()
            seconds = time.perf_counter() - started
        _, *lengths = watch.lengths
        # Beside its drafts, the first pass has the prompt and every later one the last token.
        num_drafts = watch.num_input_tokens - len(request.prompt_ids) - (len(lengths) - 1)
        return greedy_measurement(request, output_ids, lengths, num_drafts, seconds, watch.first_token_at - started)


class _Watch:
    """Streamer for `generate`: receives the prompt, then the tokens of each pass, once they are on the CPU.
    lengths: number of tokens of each call, the prompt first."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.first_token_at = 0.0
        self.num_input_tokens = 0

    def put(self, tokens: torch.Tensor) -> None:
        if len(self.lengths) == 1:
            self.first_token_at = time.perf_counter()
        self.lengths.append(tokens.numel())

    def end(self) -> None:
        """The output has ended."""

    def count_input(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.num_input_tokens += int(options["input_ids"].shape[1])


def load_baselines(
    names: list[str], engine_dir: Path, dtype: Dtype, device: Device, max_seq_len: int, quantization: str = "none"
) -> list[Contender]:
    """Load the named baselines over one model with the engine's weights. They cannot share our engine's tensors, which
    are repacked. For an int8 engine of the lean pass its weights are dequantized; for another int8 engine it has int8
    weights and our kernels. names: from `BASELINES`. max_seq_len: see `HuggingFaceBaseline`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    if read_plan(engine_dir) is not None:
        from pipeline.engine.torch.lean.layout import load_model

        model = load_model(engine_dir, getattr(torch, dtype))
    elif quantization == "int8":
        model = load_quantized(engine_dir, getattr(torch, dtype))
        pack_linears(model)
    else:
        model = AutoModelForCausalLM.from_pretrained(engine_dir, dtype=getattr(torch, dtype), local_files_only=True)
    model = model.to(device).eval()
    # A checkpoint's own sampling settings would only cause warnings.
    model.generation_config = type(model.generation_config)()
    gc.collect()
    lookup = {"hf": None, "hf-prompt-lookup": PROMPT_LOOKUP_NUM_TOKENS}
    return [HuggingFaceBaseline(name, model, max_seq_len, lookup[name]) for name in names]
