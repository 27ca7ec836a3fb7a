"""llama.cpp as a baseline: greedy, and with its prompt lookup, on the GGUF file of the model's checkpoint.

It uses the file's quantized weights; ours are dequantized or quantized again, so outputs may differ.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.bench.contenders.contender import Contender, greedy_measurement
from pipeline.bench.data.workload import Prompt
from pipeline.bench.report.results import MeasuredRequest
from pipeline.checkpoint.fetch import describe_source, fetch
from pipeline.config.schema import GgufCheckpoint, ModelConfig, WheelCheckpoint
from pipeline.decoding.request import GenerationRequest
from pipeline.errors import UserError

LLAMA_CPP_BASELINES = ("llama-cpp", "llama-cpp-prompt-lookup")
# Draft tokens as in the transformers baseline, and the default n-gram size of llama-cpp-python.
_NUM_PREDICTED, _NGRAM_SIZE = 10, 2
_INSTALL = "pip install 'lookahead-pipeline[llama-cpp]' (it is compiled for this machine, which takes some minutes)"


def check_llama_cpp(model: ModelConfig) -> None:
    """Raise UserError if llama.cpp is not installed, or cannot run the model."""
    if importlib.util.find_spec("llama_cpp") is None:
        raise UserError(f"The baseline llama-cpp needs llama-cpp-python, which is not installed: {_INSTALL}.")
    if not isinstance(model.checkpoint, (GgufCheckpoint, WheelCheckpoint)):
        raise UserError(
            f"The baseline llama-cpp runs GGUF files, and {model.name} comes from {describe_source(model)}. Leave it "
            "out, or take a model whose checkpoint is a GGUF file."
        )


def load_llama_cpp(
    names: Sequence[str], model: ModelConfig, cache_dir: Path, max_seq_len: int, num_threads: int
) -> list[Contender]:
    """Load the named baselines. max_seq_len: limit of prompt and output. num_threads: of a pass, as in our engine."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    checkpoint = fetch(model, cache_dir)
    assert checkpoint.gguf_file is not None, "check_llama_cpp refuses other checkpoints"
    path = str(checkpoint.folder / checkpoint.gguf_file)
    draft_models = {
        "llama-cpp": None,
        "llama-cpp-prompt-lookup": LlamaPromptLookupDecoding(_NGRAM_SIZE, _NUM_PREDICTED),
    }
    return [
        LlamaCppBaseline(
            name,
            Llama(
                path,
                n_ctx=max_seq_len,
                n_threads=num_threads,
                n_threads_batch=num_threads,
                draft_model=draft_models[name],
                # Without it, llama-cpp-python fails with drafts after prompts longer than a batch of 512.
                logits_all=draft_models[name] is not None,
                verbose=False,
            ),
            max_seq_len,
        )
        for name in names
    ]


class LlamaCppBaseline(Contender):
    """`Llama.generate` without sampling, from an empty cache. A step is a forward pass."""

    def __init__(self, name: str, llama: Any, max_seq_len: int) -> None:
        self.name = name
        self._llama = llama
        self._max_seq_len = max_seq_len

    def generate(self, request: GenerationRequest, prompt: Prompt) -> MeasuredRequest:
        prompt_ids = request.prompt_ids.tolist()
        limit = min(request.max_new_tokens, self._max_seq_len - len(prompt_ids))
        llama, output_ids = self._llama, list[int]()
        # Draft tokens and emitted tokens of each pass.
        drafts: list[int] = []
        lengths: list[int] = []
        evaluate = llama.eval

        def counted(tokens: Sequence[int]) -> None:
            drafts.append(len(tokens) - 1 if drafts else 0)
            lengths.append(0)
            evaluate(tokens)

        llama.reset()
        llama.eval = counted
        ttft_s = 0.0
        started = time.perf_counter()
        try:
            for token in llama.generate(prompt_ids, temp=0.0):
                ttft_s = ttft_s or time.perf_counter() - started
                output_ids.append(int(token))
                lengths[-1] += 1
                if token in request.end_ids or len(output_ids) == limit:
                    break
        finally:
            llama.eval = evaluate
        seconds = time.perf_counter() - started
        return greedy_measurement(request, output_ids, lengths, sum(drafts), seconds, ttft_s)
