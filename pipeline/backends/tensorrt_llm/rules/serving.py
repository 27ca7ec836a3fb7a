"""Parameters of the served model and the way it is launched."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.backends.tensorrt_llm import facts
from pipeline.backends.tensorrt_llm.case import Case
from pipeline.backends.tensorrt_llm.rules.problem import Rule, parameter
from pipeline.config.faults import Fault, did_you_mean, fault, one_of

# Parameters that have a setting of their own, and where it is.
SET_ELSEWHERE = {
    "gpt_model_type": "the pipeline: in-flight batching",
    "gpt_model_path": "the pipeline: the artefact's engine",
    "tokenizer_dir": "the pipeline: the artefact's tokenizer",
    "decoding_mode": "tensorrt_llm.speculation",
    "lookahead_window_size": "model.lookahead",
    "lookahead_ngram_size": "model.lookahead",
    "lookahead_verification_set_size": "model.lookahead",
    "batch_scheduler_policy": "tensorrt_llm.batch_scheduler_policy",
    "kv_cache_free_gpu_mem_fraction": "tensorrt_llm.kv_cache_free_gpu_mem_fraction",
    "kv_cache_host_memory_bytes": "tensorrt_llm.kv_cache_host_memory_bytes",
    "enable_kv_cache_reuse": "tensorrt_llm.enable_kv_cache_reuse",
    "enable_chunked_context": "tensorrt_llm.enable_chunked_context",
    "exclude_input_in_output": "each request; clients of the stock loop need the default",
}
_OF_NO_USE = {
    "enable_trt_overlap": "it has no effect any more",
    "encoder_model_path": "only decoder models are served",
    "cross_kv_cache_fraction": "only decoder models are served",
    "medusa_choices": "Medusa engines are not built here",
    "eagle_choices": "EAGLE engines are not built here",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "the C++ backend wants it as it is",
}


def known_parameters(case: Case) -> Iterator[Fault]:
    """Unknown names, values that the backend would drop without a word, and settings that have a place of their own."""
    known = facts.parameters()
    for name, value in case.trt.parameters.items():
        key = parameter(name)
        if name in SET_ELSEWHERE:
            yield fault(key, f"found {value!r}; it is set by {SET_ELSEWHERE[name]}.", "Remove it here.")
        elif name in _OF_NO_USE:
            yield fault(key, f"found {value!r}; not to be used: {_OF_NO_USE[name]}.", "Remove it.")
        elif name not in known:
            yield fault(key, f"is no parameter of the tensorrtllm backend.{did_you_mean(name, known)}")
        elif wrong := _wrong_value(known[name], value):
            yield fault(key, f"found {value!r}; should be {wrong}.")


def _wrong_value(entry: facts.Parameter, value: bool | int | float | str) -> str | None:
    """What the value should be; None if it is fine. The backend keeps its default for a value that it cannot read."""
    kind = entry.type.split(";")[0]
    if kind == "bool":
        return None if isinstance(value, bool) else "true or false"
    if isinstance(value, bool):
        return f"a {kind}"
    if kind in ("int", "uint"):
        return None if isinstance(value, int) and value >= 0 else "a whole number of at least 0"
    if kind.startswith("float"):
        fits = isinstance(value, int | float) and (kind == "float" or 0 <= value <= 1)
        return None if fits else "a number from 0 to 1" if kind != "float" else "a number"
    if kind == "csv int":
        parts = str(value).replace(";", ",").split(",")
        return None if all(part.strip().isdigit() for part in parts) else 'numbers with commas between, e.g. "0,1"'
    if entry.values and str(value) not in entry.values:
        return one_of([word for word in entry.values if word])
    return None


def lookahead_attends_to_all(case: Case) -> Iterator[Fault]:
    """Sink tokens and limited windows have no tree kernels."""
    if "lookahead" not in case.modes:
        return
    for name in ("sink_token_length", "max_attention_window_size"):
        if case.parameter(name) is not None:
            yield fault(
                parameter(name),
                f"found {case.parameter(name)!r}; lookahead decoding attends to all tokens.",
                "Remove it, or set tensorrt_llm.speculation to 'trie' or 'none'.",
            )


def guided_decoding_is_not_for_lookahead(case: Case) -> Iterator[Fault]:
    if "lookahead" in case.modes and case.parameter("guided_decoding_backend"):
        yield fault(
            parameter("guided_decoding_backend"),
            f"found {case.parameter('guided_decoding_backend')!r}; guided decoding and lookahead decoding exclude each "
            "other.",
            "Remove it, or set tensorrt_llm.speculation to 'trie' or 'none'.",
        )


def guided_decoding_has_its_tokens(case: Case) -> Iterator[Fault]:
    backend = case.parameter("guided_decoding_backend")
    if backend and not case.parameter("xgrammar_tokenizer_info_path"):
        yield fault(
            parameter("guided_decoding_backend"),
            f"found {backend!r} without xgrammar_tokenizer_info_path; the C++ backend reads the tokens from that file.",
            "Add it.",
        )


def one_beam(case: Case) -> Iterator[Fault]:
    if case.parameter("max_beam_width") not in (None, 1):
        yield fault(
            parameter("max_beam_width"),
            f"found {case.parameter('max_beam_width')!r}; the engine is built for one beam.",
            "Remove it.",
        )


def weights_are_on_the_gpu(case: Case) -> Iterator[Fault]:
    percent = case.parameter("gpu_weights_percent")
    if isinstance(percent, int | float) and percent < 1 and not case.flag("weight_streaming"):
        yield fault(
            parameter("gpu_weights_percent"),
            f"found {percent}; only an engine built with tensorrt_llm.build_flags.weight_streaming = true keeps "
            "weights elsewhere.",
            "Add that, or remove this.",
        )


def fast_logits_need_unspawned_orchestrator(case: Case) -> Iterator[Fault]:
    if case.parameter("speculative_decoding_fast_logits") and not case.names_ranks:
        yield fault(
            parameter("speculative_decoding_fast_logits"),
            "found true; the backend switches it off except with tensorrt_llm.orchestrator = true and "
            "tensorrt_llm.spawn_processes = false.",
            "Remove it.",
        )


def only_an_orchestrator_spawns(case: Case) -> Iterator[Fault]:
    if not case.trt.spawn_processes and not case.trt.orchestrator:
        yield fault(
            "tensorrt_llm.spawn_processes",
            "found false; it belongs to tensorrt_llm.orchestrator = true.",
            "Remove it, or set that.",
        )


def ranks_are_those_that_are_started(case: Case) -> Iterator[Fault]:
    """participant_ids: the MPI ranks of one Triton model, so one text cannot name those of two."""
    found = case.parameter("participant_ids")
    if found is None:
        return
    if not case.names_ranks:
        yield fault(
            parameter("participant_ids"),
            f"found {found!r}; only an orchestrator that spawns no processes tells models their ranks "
            "(tensorrt_llm.orchestrator = true, tensorrt_llm.spawn_processes = false).",
            "Remove it.",
        )
        return
    right = [case.participant_ids(index) for index in range(len(case.modes))]
    if [str(found).replace(" ", "")] != right:
        yield fault(
            parameter("participant_ids"),
            f"found {found!r}; rank 0 is the orchestrator's, and each engine has {case.world_size} of its own: "
            f"{' and '.join(map(repr, right))}.",
            "Remove it; the pipeline sets it.",
        )


def every_rank_has_a_gpu(case: Case) -> Iterator[Fault]:
    """gpu_device_ids: one GPU per rank, commas inside an instance and semicolons between instances."""
    found = case.parameter("gpu_device_ids")
    if found is not None and any(len(ids.split(",")) != case.world_size for ids in str(found).split(";")):
        yield fault(
            parameter("gpu_device_ids"),
            f"found {found!r}; the engine has {case.world_size} rank(s), and each instance needs as many GPUs.",
            "List that many, or change model.parallelism.",
        )


def strict_mode_is_of_the_torch_engine(case: Case) -> Iterator[Fault]:
    if case.engine.strict_tensorrt_llm:
        yield fault(
            "engine.strict_tensorrt_llm",
            "found true; it lets the torch engine behave like this backend.",
            "Remove it, or use backend: torch.",
        )


def two_engines_share_the_cache(case: Case) -> Iterator[Fault]:
    """A token limit for one instance cannot be laid over the split of two."""
    if len(case.modes) > 1 and case.parameter("max_tokens_in_paged_kv_cache") is not None:
        yield fault(
            parameter("max_tokens_in_paged_kv_cache"),
            f"found {case.parameter('max_tokens_in_paged_kv_cache')!r}; with tensorrt_llm.speculation = 'both' each "
            "engine gets its own by tensorrt_llm.lookahead_kv_share.",
            "Remove it.",
        )


RULES: tuple[Rule, ...] = (
    known_parameters,
    lookahead_attends_to_all,
    guided_decoding_is_not_for_lookahead,
    guided_decoding_has_its_tokens,
    one_beam,
    weights_are_on_the_gpu,
    fast_logits_need_unspawned_orchestrator,
    only_an_orchestrator_spawns,
    ranks_are_those_that_are_started,
    every_rank_has_a_gpu,
    strict_mode_is_of_the_torch_engine,
    two_engines_share_the_cache,
)
