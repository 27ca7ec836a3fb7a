"""Checks of a config for TensorRT-LLM. All run before a download or build, and all faults are reported together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pipeline.backends.tensorrt_llm.build_context import BuildContext, build_context_of
from pipeline.backends.tensorrt_llm.rules import device, draft_modes, flags, model, serving
from pipeline.backends.tensorrt_llm.rules.faults import wrong
from pipeline.config.faults import Fault, raise_faults
from pipeline.config.hardware import Hardware
from pipeline.config.schema import ProfileConfig, ResolvedConfig

Rule = Callable[[BuildContext], Iterator[Fault]]
RULES: tuple[Rule, ...] = (
    model.architecture_has_an_engine,
    model.shape_is_known,
    model.ranks_divide_the_model,
    model.contexts_are_split_evenly,
    model.converter_can_do_it,
    model.path_names_the_family,
    device.gpu_has_the_formats,
    device.container_is_known,
    device.engines_fit_into_the_gpu,
    device.caches_hold_a_sequence,
    device.sizes_are_those_of_the_built_engine,
    device.external_prefix_fits_into_a_pass,
    draft_modes.lookahead_makes_drafts,
    draft_modes.lookahead_has_a_kernel,
    draft_modes.lookahead_where_it_is_tested,
    draft_modes.checkpoints_without_drafts,
    draft_modes.paged_context_where_needed,
    draft_modes.context_attention_is_as_asked,
    draft_modes.default_strategy_has_its_engine,
    flags.known_flags,
    flags.builder_keeps_them,
    flags.needed_for_serving,
    flags.plugins_have_what_they_need,
    serving.known_parameters,
    serving.lookahead_excludes,
    serving.parameters_have_what_they_need,
    serving.ranks_are_those_that_are_started,
    serving.strict_mode_is_of_the_torch_engine,
)
# Rules that check single values: names and types.
_READING: tuple[Rule, ...] = (flags.known_flags, serving.known_parameters)


def faults_of(context: BuildContext) -> list[Fault]:
    """All faults, without duplicates. Other rules skip a key whose name or value is invalid."""
    unreadable = {found.key for rule in _READING for found in rule(context)}
    found = [each for rule in RULES for each in rule(context) if rule in _READING or each.key not in unreadable]
    return list(dict.fromkeys(found))


def check(resolved: ResolvedConfig) -> BuildContext:
    """Make the context of a config. Raises ConfigError with all faults."""
    context = build_context_of(resolved)
    names = {True: f"model {resolved.model.name}", False: f"profile {resolved.profile.name}"}
    raise_faults([replace(each, where=names[each.path[0] == "model"]) for each in faults_of(context)])
    return context


def faults_of_profile(profile: ProfileConfig, hardware: Hardware | None = None) -> Iterator[Fault]:
    """Faults of settings that only work with other backends."""
    engine, found = profile.engine, list[tuple[str, object, str, str]]()
    if profile.device == "cpu":
        found.append(("device", profile.device, "backend tensorrt_llm needs a GPU", "on a CPU"))
    if engine.quantization != "none":
        same = "or, for TensorRT-LLM, 'none' and tensorrt_llm.quantization: int8_wo"
        found.append(("engine.quantization", engine.quantization, "a format of the torch backend", same))
    if engine.lookahead_parallel != 1:
        reason = "TensorRT-LLM has no lookahead parallelism"
        found.append(("engine.lookahead_parallel", engine.lookahead_parallel, reason, "or 1"))
    for key, value, reason, remedy in found:
        yield replace(wrong(key, value, reason, f"Use backend: torch {remedy}."), uses=(key, "backend"))
