"""The format that a request's output must match."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import RequestError

# TensorRT-LLM's values of `guided_decoding_guide_type`. With the torch engine, ebnf_grammar takes GBNF and Lark.
TENSORRT_LLM_KINDS = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")
GUIDE_KINDS = (*TENSORRT_LLM_KINDS, "choice")
# Longer guides are refused without being parsed.
MAX_GUIDE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Guide:
    """The format that an output must have. kind: one of `GUIDE_KINDS`. text: the schema, expression, grammar, JSON list
    of choices, or structural tag; empty for kind json, which permits any JSON object."""

    kind: str
    text: str = ""


def check_guide(guide: Guide) -> None:
    """Raise RequestError for an unknown kind, or a text that is missing or too long."""
    if guide.kind not in GUIDE_KINDS:
        raise RequestError(f"the guide type is {guide.kind!r}; it must be one of {', '.join(GUIDE_KINDS)}")
    if not guide.text and guide.kind != "json":
        raise RequestError(f"the guide of type {guide.kind} is empty; send its text, or no guide")
    num_bytes = len(guide.text.encode(errors="surrogatepass"))
    if num_bytes > MAX_GUIDE_BYTES:
        raise RequestError(f"the guide has {num_bytes} bytes; at most {MAX_GUIDE_BYTES} can be sent")
