"""Faults are reported together, each with its place, key and remedy."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.resolution import resolve_config
from pipeline.errors import ConfigError
from tests.unit.config.shipped import CPU, SHIPPED, faults_of


def test_all_faults_are_reported_at_once_with_file_key_and_remedy() -> None:
    text = faults_of(
        "engine.max_batch_sise=3",
        "engine.max_seq_len=long",
        "server.http_port=8001",
        "drafting.max_draft_tokens=200",
        "drafting.sources.1.kind=promt",
        "trategy=trie",
        "model.dtype=flaot16",
        "model.checkpoint.pakage=x",
        "nonsense",
    )
    for expected in (
        "9 faults",
        "engine.max_batch_sise: unknown key. Did you mean 'max_batch_size'?",
        "engine.max_seq_len: found 'long'; should be a valid integer",
        "configs/profiles/latency.yaml:",
        "server.grpc_port: found 8001, the same as server.http_port",
        "drafting.max_draft_tokens: found 200",
        "drafting.sources.1: found kind 'promt'",
        "Did you mean 'prompt'?",
        "trategy: unknown key. Did you mean 'drafting.strategy'?",
        "model.dtype: found 'flaot16'; should be 'float32', 'float16' or 'bfloat16'. Did you mean 'float16'?",
        "model.checkpoint.pakage: unknown key. Did you mean 'package'?",
        "found 'nonsense'; should be KEY=VALUE",
    ):
        assert expected in text


def test_a_value_that_fits_no_type_is_one_fault() -> None:
    assert "faults" not in faults_of("tensorrt_llm.parameters.num_nodes=[1, 2]")


KEYS = st.sampled_from(
    [
        *("engine", "engine.max_batch_size", "engine.max_num_tokens", "engine.x.y", "drafting.sources", "drafting"),
        *("drafting.sources.0", "drafting.sources.0.kind", "server.http_port", "tensorrt_llm.speculation", "device"),
        *("model.checkpoint", "model.checkpoint.source", "model.lookahead", "model.lookahead.latency", "model.name"),
        *("model.lookahead.latency.max_ngram_size", "model", "profile", "1.2", "name", "backend", "model.dtype"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["trie", "hub"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "source", "x", "max_bytes"]) | st.text(max_size=3), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=25)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=4))
def test_any_overrides_resolve_or_every_fault_is_reported(overrides: list[tuple[str, object]]) -> None:
    texts = [f"{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in overrides]
    try:
        resolve_config("smollm2-135m", "latency", texts, where=SHIPPED, hardware=CPU)
    except ConfigError as error:
        message = str(error)
    else:
        message = "nothing wrong"
    assert message.strip()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("enginee.max_seq_len=1", "--set: enginee: unknown key. Did you mean 'engine'?"),
        ("profile.server.http_port=1", "--set: profile: unknown key."),
        ("model.name=x", "--set: model.name: found 'x'; it is the name of the file"),
        ("model.dtype.x=1", "--set: model.dtype.x: does not exist"),
        ("engine.max_seq_len=2020-99-99", "--set: engine.max_seq_len: found '2020-99-99'"),
        ("engine.max_seq_len=" + 5000 * "9", "should be a value as in YAML (Exceeds the limit"),
        ("engine={max_seq_len: 1, max_seq_len: 2}", "--set: engine.max_seq_len: is written twice"),
        ("server.host=on", "--set: server.host: found true, which YAML also reads"),
        ("engine.max_batch_size='8'", "Written as a number it is 8, without quotes or exponent."),
        ("server.http_port=99999", "server.http_port: found 99999; should be less than or equal to 65535"),
        ("server.host=nowhere", "server.host: found 'nowhere'; should be an IPv4 address"),
        ("server.host='::1'", "server.host: found '::1'; should be an IPv4 address"),
        ("server.startup_timeout_s=.inf", "server.startup_timeout_s: found inf; should be a finite number"),
        (
            "engine.max_batch_size=1e9",
            "found the text '1e9'; should be a valid integer. Written as a number it is 1000000000",
        ),
        ("engine.max_batch_size=1e9999", "engine.max_batch_size: found '1e9999'; should be a valid integer."),
        (
            "server.startup_timeout_s=1e-3",
            "found the text '1e-3'; should be a valid number. Written as a number it is 0.001",
        ),
        ("drafting.sources=3", "drafting.sources: found 3; should be a list."),
        ("drafting.sources.²=1", "drafting.sources.²: does not exist"),
        ("model.lookahead.07.max_window_size=0", "--set: model.lookahead.07.max_window_size: found 0; should be"),
        ("server.startup_timeout_s=.nan", "server.startup_timeout_s: found nan; should be a finite number"),
    ],
)
def test_a_fault_of_an_override_is_one_sentence_with_the_whole_key(override: str, expected: str) -> None:
    assert expected in faults_of(override)


def test_a_short_word_gets_no_suggestion_because_it_is_similar_to_wrong_ones() -> None:
    text = faults_of("device=gpu")
    assert "found 'gpu'; should be 'auto', 'cpu' or 'cuda'." in text
    assert "Did you mean" not in text
