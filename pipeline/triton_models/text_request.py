"""Conversion of the input tensors of `lookahead_bls` to a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.config.schema import LookaheadConfig
from pipeline.decoding.log_probs import LogitOptions
from pipeline.decoding.request import GenerationRequest
from pipeline.decoding.strategy import check_strategy
from pipeline.decoding.tree import FloatArray, IntArray
from pipeline.engine.admission import require_tokens
from pipeline.errors import RequestError
from pipeline.triton_models.engine_calls import lookahead_config, refuse_unsupported, sampling_of
from pipeline.triton_models.fair_slots import split_namespace
from pipeline.triton_models.guide_tensors import guide_of, logit_options_of
from pipeline.triton_models.spans import TRACEPARENT
from pipeline.triton_models.tensors import Tensors, flag, integer, require_one_row, scalar, text, texts, token_ids
from pipeline.triton_models.text_codec import TextCodec, parse_messages

_UNSUPPORTED = (
    "decoder_text_input",
    "image_input",
    "image_bytes_input",
    "image_url_input",
    "video_bytes_input",
    "prompt_embedding_table",
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "use_draft_logits",
)
# Module `sequences` has split a request for several outputs before.
_FIXED = {"beam_width": 1, "num_return_sequences": 1}
# Limits of each list of words. Long lists would slow down every token, and with it other requests.
_MAX_WORDS, _MAX_WORD_BYTES = 1024, 65536
# Limit of "TENANT/NAME", where the client chooses the name.
_MAX_NAMESPACE_BYTES = 256
# Characters that are tokenized first, per token of the longest prompt. Few texts have more per token.
_CHARS_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request. tenant: takes turns with others, see `fair_slots`. end_id: the end token to send to the target, if
    any. TensorRT-LLM accepts one; the session handles the others. stop_tokens: token ids of each stop word, tokenized
    alone. prediction: [tokens] the client's guess at the output. tokens_only: return token ids instead of text. echo:
    prompt text to return in front of the output. lookahead: W, N and G if the client set them. max_draft_tokens: the
    client's limit of nodes per step, if any. wanted: logits and log probabilities to return. traceparent: parent span
    of the request."""

    generation: GenerationRequest
    tenant: str
    end_id: int | None
    strategy: str
    stop_words: tuple[str, ...]
    stop_tokens: tuple[tuple[int, ...], ...]
    prediction: IntArray
    stream: bool
    tokens_only: bool
    echo: str
    lookahead: LookaheadConfig | None
    max_draft_tokens: int | None
    return_statistics: bool
    return_perf_metrics: bool
    return_num_input_tokens: bool
    return_num_output_tokens: bool
    wanted: LogitOptions = field(default_factory=LogitOptions)
    traceparent: str | None = None


def text_request(
    codec: TextCodec,
    tensors: Tensors,
    request_id: str,
    default_strategy: str,
    longest_prompt: int,
    shares_drafts: bool = False,
) -> TextRequest:
    """Read a request from its tensors. longest_prompt: limit of the prompt in tokens. shares_drafts: whether namespaces
    of the same name are one for all tenants. Raises RequestError if the request is invalid or uses an unsupported
    option."""
    require_one_row(tensors)
    refuse_unsupported(tensors, _UNSUPPORTED, _FIXED, "lookahead_bls")
    strategy = text(tensors, "strategy") or default_strategy
    check_strategy(strategy)
    max_tokens = integer(tensors, "max_tokens", 1)
    if max_tokens is None:
        raise RequestError("max_tokens is missing; send the maximum number of output tokens, at least 1")
    words, bad_words, stop_words = (_words(tensors, n) for n in ("embedding_bias_words", "bad_words", "stop_words"))
    stop_tokens = codec.encode_words(stop_words)
    prompt_ids, prompt = _prompt(codec, tensors, longest_prompt)
    num_resumed_tokens = _num_resumed_tokens(tensors, len(prompt_ids), max_tokens)
    prediction = _prediction(codec, tensors, longest_prompt)
    require_tokens(prediction, codec.vocab_size, "prediction")
    weights = tensors.get("embedding_bias_weights", np.empty(0, np.float32)).reshape(-1).tolist()
    excluded = scalar(tensors, "exclude_input_in_output") in (None, True)
    stream = flag(tensors, "stream")
    tenant, name = split_namespace(namespace := _namespace(tensors))
    guide = guide_of(tensors)
    # A grammar needs an end token, even if the client sets none.
    end_ids = _end_ids(codec, tensors) or (codec.end_ids if guide else frozenset())
    return TextRequest(
        generation=GenerationRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            max_new_tokens=max_tokens,
            min_new_tokens=integer(tensors, "min_tokens", 0, max_tokens) or 0,
            end_ids=end_ids,
            stop_sequences=codec.special_words(stop_tokens),
            sampling=sampling_of(
                tensors,
                bad_words=codec.encode_words(bad_words),
                embedding_bias=_with_logit_bias(codec, tensors, codec.embedding_bias(words, weights)),
            ),
            namespace=name if shares_drafts else namespace,
            num_resumed_tokens=num_resumed_tokens,
            guide=guide,
        ),
        tenant=tenant,
        end_id=codec.end_id if codec.end_id in end_ids else min(end_ids, default=None),
        strategy=strategy,
        stop_words=tuple(stop_words),
        stop_tokens=stop_tokens,
        prediction=prediction,
        stream=stream,
        tokens_only="input_ids" in tensors,
        echo="" if stream or excluded else prompt,
        lookahead=lookahead_config(tensors),
        max_draft_tokens=integer(tensors, "num_draft_tokens", 0),
        return_statistics=flag(tensors, "return_statistics"),
        return_perf_metrics=flag(tensors, "return_perf_metrics"),
        return_num_input_tokens=flag(tensors, "return_num_input_tokens"),
        return_num_output_tokens=flag(tensors, "return_num_output_tokens"),
        wanted=logit_options_of(tensors),
        traceparent=text(tensors, TRACEPARENT),
    )


def require_few_logits(request: TextRequest, vocab_size: int, max_seq_len: int, max_bytes: int) -> None:
    """Raise RequestError if all responses together would hold more logits than max_bytes. Triton keeps those of a
    stream whose client does not read."""
    wanted, generation = request.wanted, request.generation
    num_rows = len(generation.prompt_ids) if wanted.context_logits else 0
    if wanted.generation_logits:
        num_rows += min(generation.max_new_tokens, max_seq_len)
    if (num_bytes := 4 * num_rows * vocab_size) > max_bytes:
        raise RequestError(
            f"the output would hold up to {num_bytes} bytes of logits, and {max_bytes} are allowed "
            "(server.gateway.max_logits_bytes); shorten the prompt, lower max_tokens, or ask for log probabilities"
        )


def _namespace(tensors: Tensors) -> str:
    namespace = text(tensors, "namespace") or ""
    if (num_bytes := _num_bytes(namespace)) > _MAX_NAMESPACE_BYTES:
        raise RequestError(f"namespace has {num_bytes} bytes; at most {_MAX_NAMESPACE_BYTES} can be sent")
    return namespace


def _words(tensors: Tensors, name: str) -> list[str]:
    words = texts(tensors, name)
    num_bytes = sum(_num_bytes(word) for word in words)
    if len(words) > _MAX_WORDS or num_bytes > _MAX_WORD_BYTES:
        raise RequestError(
            f"{name} holds {len(words)} words of {num_bytes} bytes; at most {_MAX_WORDS} words of {_MAX_WORD_BYTES} "
            "bytes in all can be sent"
        )
    return words


def _prediction(codec: TextCodec, tensors: Tensors, longest_prompt: int) -> IntArray:
    """Token ids of the client's guess at the output, cut to longest_prompt."""
    prediction = text(tensors, "prediction")
    if not prediction:
        return np.empty(0, np.int32)
    return codec.encode(prediction[: _CHARS_PER_TOKEN * longest_prompt], add_special_tokens=False)[:longest_prompt]


def _encoded_prompt(codec: TextCodec, prompt: str, longest: int, add_special_tokens: bool = True) -> IntArray:
    """Token ids of a prompt. Raises RequestError as soon as its beginning has twice as many tokens as the limit. (The
    limit itself would not do: the last word of a beginning may have more tokens than it has in the whole text.)"""
    num_chars = _CHARS_PER_TOKEN * longest
    while num_chars < len(prompt):
        if len(codec.encode(prompt[:num_chars], add_special_tokens)) > 2 * longest:
            raise RequestError(
                f"this model's maximum context length is {longest + 1} tokens, and the first {num_chars} characters "
                f"of the prompt have more than {2 * longest}; shorten it or build with a larger engine.max_seq_len"
            )
        num_chars *= 4
    return codec.encode(prompt, add_special_tokens)


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _prompt(codec: TextCodec, tensors: Tensors, longest: int) -> tuple[IntArray, str]:
    prompt = text(tensors, "text_input") or ""
    messages, system = text(tensors, "messages"), text(tensors, "system_prompt")
    if "input_ids" in tensors:
        if prompt or messages or system:
            raise RequestError("input_ids was sent beside a text; leave text_input empty and the other texts out")
        return _input_ids(codec, tensors), ""
    if messages:
        conversation = parse_messages(messages)
    elif not prompt:
        raise RequestError("text_input is empty; send a prompt, or a conversation in messages")
    elif flag(tensors, "use_chat_template"):
        conversation = [{"role": "user", "content": prompt}]
    elif system:
        raise RequestError(
            "system_prompt was sent for plain text_input; set use_chat_template, or put it into the text"
        )
    else:
        return _encoded_prompt(codec, prompt, longest), prompt
    if system:
        conversation.insert(0, {"role": "system", "content": system})
    # The template inserts special tokens.
    return _encoded_prompt(codec, codec.chat_text(conversation), longest, add_special_tokens=False), prompt


def _input_ids(codec: TextCodec, tensors: Tensors) -> IntArray:
    ids = token_ids(tensors, "input_ids")
    if not len(ids):
        raise RequestError("input_ids is empty; send at least one token")
    require_tokens(ids, codec.vocab_size, "the prompt")
    return ids


def _with_logit_bias(codec: TextCodec, tensors: Tensors, bias: FloatArray | None) -> FloatArray | None:
    """[vocab] `bias`, which comes from words, plus the bias of single tokens; None without either."""
    ids = token_ids(tensors, "logit_bias_ids")
    values = tensors.get("logit_bias_values", np.empty(0, np.float32)).reshape(-1)
    if len(ids) != len(values):
        raise RequestError(
            f"logit_bias_ids has {len(ids)} tokens, logit_bias_values {len(values)} values; send one value per token"
        )
    if not len(ids):
        return bias
    require_tokens(ids, codec.vocab_size, "the logit bias")
    if not np.isfinite(values).all():
        raise RequestError("the logit bias holds a number that is not finite; send finite numbers of 32 bits")
    bias = np.zeros(codec.vocab_size, np.float32) if bias is None else bias
    np.add.at(bias, ids, values)
    return bias


def _num_resumed_tokens(tensors: Tensors, num_tokens: int, max_tokens: int) -> int:
    count = integer(tensors, "num_resumed_tokens", 0, min(num_tokens, max_tokens) - 1) or 0
    if count and "input_ids" not in tensors:
        raise RequestError("num_resumed_tokens was sent without input_ids; they belong together")
    return count


def _end_ids(codec: TextCodec, tensors: Tensors) -> frozenset[int]:
    end_id = integer(tensors, "end_id", -1, codec.vocab_size - 1)
    if end_id is None:
        return codec.end_ids
    return frozenset() if end_id < 0 else frozenset({end_id})  # -1: none
