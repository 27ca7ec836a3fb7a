"""Tensors of the served models beyond TensorRT-LLM's. All are optional, so every client of TensorRT-LLM works.

`tensorrt_llm` has them with the torch engine only, `lookahead_bls` with every engine. The documentation shows the
comment above each tensor as its meaning.
"""

from __future__ import annotations

from pipeline.repository.contract import Tensor


def _input(name: str, dtype: str, dims: tuple[int, ...] = (1,), scalar: bool = False) -> Tensor:
    return Tensor(name, f"TYPE_{dtype}", dims, optional=True, reshape=() if scalar else None)


# Log probabilities are computed before temperature, penalties, banned words and grammar. return_log_probs requests
# output_log_probs and cum_log_probs. An end token has no log probability.
_LOG_PROB_INPUTS = (
    # With return_log_probs: number of alternatives at each position, at most 64.
    _input("num_top_logprobs", "INT32", scalar=True),
    # With return_log_probs: return prompt_log_probs, and the alternatives at each position of the prompt.
    _input("return_prompt_log_probs", "BOOL", scalar=True),
)
_LOG_PROB_OUTPUTS = (
    # [tokens of this response, num_top_logprobs] the most probable tokens, best first.
    Tensor("top_logprob_ids", "TYPE_INT32", (-1, -1)),
    # Their log probabilities.
    Tensor("top_logprobs", "TYPE_FP32", (-1, -1)),
    # Sent with the first tokens: log probability of each prompt token except the first.
    Tensor("prompt_log_probs", "TYPE_FP32", (-1,)),
    # The most probable tokens at each position of the prompt, best first.
    Tensor("prompt_top_logprob_ids", "TYPE_INT32", (-1, -1)),
    # Their log probabilities.
    Tensor("prompt_top_logprobs", "TYPE_FP32", (-1, -1)),
)

TENSORRT_LLM_INPUTS = (
    # Parent of each draft token, -1 for the last accepted token: turns `draft_input_ids` from a chain into a tree.
    _input("draft_parents", "INT32", (-1,)),
    # Estimated probability that the path down to each draft token is accepted.
    _input("draft_probabilities", "FP32", (-1,)),
    # Strategy that selects the engine's own draft sources, such as hybrid.
    _input("draft_strategy", "STRING", scalar=True),
    # The request ends after this number of engine passes that emit tokens. Default: 1 with draft tokens, else no limit.
    _input("max_steps", "INT32", scalar=True),
    # Limit of draft tokens per step of this request, including the engine's own.
    _input("max_draft_tokens", "INT32", scalar=True),
    # As min_p of `lookahead_bls`.
    _input("runtime_min_p", "FP32", scalar=True),
    # Tokens that are banned among the first min_tokens, as end_id is: further end tokens, special tokens as stop words.
    _input("late_ids", "INT32", (-1,)),
    # Tokens that end the output, as end_id does. For a guide, which allows end tokens only at its end.
    _input("end_ids", "INT32", (-1,)),
    # Presence and frequency penalties count tokens of prompt and output from this position on; default 0.
    _input("prompt_ignore_length", "INT32", scalar=True),
    # Number of tokens at the end of input_ids that are output of an earlier request, which this request continues. The
    # grammar includes them.
    _input("num_resumed_tokens", "INT32", scalar=True),
    *_LOG_PROB_INPUTS,
    # Namespace of the engine's own draft sources; see `namespace` of `lookahead_bls`.
    _input("draft_namespace", "STRING", scalar=True),
    # Whether another request will continue this output. From the second request on, the slot stays reserved briefly.
    _input("to_be_continued", "BOOL", scalar=True),
    # Parent span of the request in W3C Trace Context format. Ignored without a collector.
    _input("traceparent", "STRING", scalar=True),
)

TENSORRT_LLM_OUTPUTS = (
    # On the last response: end_token, stop_words, length, cancelled; or "step" after a verification step with drafts.
    Tensor("finish_reason", "TYPE_STRING", (1,)),
    # With return_perf_metrics: number of engine passes in which this request emitted tokens.
    Tensor("num_steps", "TYPE_INT32", (1,)),
    *_LOG_PROB_OUTPUTS,
)

LOOKAHEAD_BLS_INPUTS = (
    # none, lookahead, trie, hybrid or auto; default: the profile's strategy.
    _input("strategy", "STRING"),
    # Requests of one namespace share a trie of past outputs. Requests of other namespaces do not use it.
    _input("namespace", "STRING"),
    # Wrap text_input as a user's message in the model's chat template.
    _input("use_chat_template", "BOOL"),
    # System prompt for the chat template.
    _input("system_prompt", "STRING"),
    # A conversation as JSON, [{"role": ..., "content": ...}]; replaces text_input.
    _input("messages", "STRING"),
    # The prompt as token ids; replaces text_input. The responses then hold output_ids and no text_output.
    _input("input_ids", "INT32", (-1,)),
    # Number of tokens at the end of input_ids that are output of an interrupted run of the request. min_tokens,
    # max_tokens and stop words include them; output_ids does not.
    _input("num_resumed_tokens", "INT32"),
    # Tokens whose logits are changed.
    _input("logit_bias_ids", "INT32", (-1,)),
    # The value to add to the logit of each of them.
    _input("logit_bias_values", "FP32", (-1,)),
    # As in `tensorrt_llm`. With the torch engine only.
    _input("prompt_ignore_length", "INT32"),
    # Predicted output, as in editing tasks. Correct parts are verified several tokens at a time.
    _input("prediction", "STRING"),
    # Do not sample tokens whose probability is below this share of the highest one.
    _input("min_p", "FP32"),
    # W of this request, at most that of the engine.
    _input("lookahead_window_size", "INT32"),
    # N of this request, at most that of the engine.
    _input("lookahead_ngram_size", "INT32"),
    # G of this request, at most that of the engine.
    _input("lookahead_verification_set_size", "INT32"),
    *_LOG_PROB_INPUTS,
    # Whether to return `statistics`.
    _input("return_statistics", "BOOL"),
    # As in `tensorrt_llm`.
    _input("traceparent", "STRING"),
    # Stop the running requests with this request's id. They end with the text sent so far.
    _input("stop", "BOOL"),
)

LOOKAHEAD_BLS_OUTPUTS = (
    # The new tokens of this response, including an end token. Only if input_ids was sent.
    Tensor("output_ids", "TYPE_INT32", (-1,)),
    # On the last response: end_token, stop_words, length or cancelled.
    Tensor("finish_reason", "TYPE_STRING", (1,)),
    # On the last response, if requested: token ids, counts and times as one JSON object.
    Tensor("statistics", "TYPE_STRING", (1,)),
    *_LOG_PROB_OUTPUTS,
)
