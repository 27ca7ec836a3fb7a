"""Lists of served and refused architectures: complete, known to transformers, with reasons."""

import pytest
import transformers

from pipeline.checkpoint.architectures import (
    ARCHITECTURES,
    REFUSED,
    SUPPORTED_ARCHITECTURES,
    check_architecture,
)
from pipeline.cli.generated import architecture_tables
from pipeline.config.bare_checkpoint import GGUF_ARCHITECTURES
from pipeline.errors import CheckpointError

# Architectures that the product must support, or refuse with a reason.
PROMISED = [
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "Phi3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTJForCausalLM",
    "GPTNeoXForCausalLM",
    "OPTForCausalLM",
    "BloomForCausalLM",
    "GlmForCausalLM",
    "InternLM2ForCausalLM",
    "BaichuanForCausalLM",
]


def test_the_page_names_every_architecture() -> None:
    for name in (*SUPPORTED_ARCHITECTURES, *REFUSED):
        assert f"| {name} |" in architecture_tables()


def test_every_promised_architecture_is_served_or_refused_with_a_reason() -> None:
    assert set(PROMISED) <= {*SUPPORTED_ARCHITECTURES, *REFUSED}
    assert not set(SUPPORTED_ARCHITECTURES) & REFUSED.keys()
    assert len(set(SUPPORTED_ARCHITECTURES)) == len(ARCHITECTURES)
    assert {name for names in GGUF_ARCHITECTURES.values() for name in names} <= set(SUPPORTED_ARCHITECTURES)


@pytest.mark.parametrize("name", SUPPORTED_ARCHITECTURES)
def test_transformers_knows_what_is_served(name: str) -> None:
    assert hasattr(transformers, name)
    check_architecture(name, "here")


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_gives_its_reason(name: str) -> None:
    with pytest.raises(CheckpointError, match=name) as caught:
        check_architecture(name, "here")
    assert REFUSED[name] in str(caught.value)
    assert hasattr(transformers, name) != ("no modelling code" in REFUSED[name])
