"""Tensors that we serve on top of TensorRT-LLM's: all optional, so that any client of it is served as ever.

`tensorrt_llm` has them with the torch engine only; `lookahead_bls` always.
"""

from __future__ import annotations

from pipeline.repository.contract import Tensor


def _input(name: str, dtype: str, dims: tuple[int, ...] = (1,), scalar: bool = False) -> Tensor:
    return Tensor(name, f"TYPE_{dtype}", dims, optional=True, reshape=() if scalar else None)


# Log probabilities are the target's own: before temperature, penalties, bans and grammar. return_log_probs asks for
# output_log_probs and cum_log_probs; an end token has none.
_LOG_PROB_INPUTS = (
    # With return_log_probs: so many alternatives at each place, at most 64.
    _input("num_top_logprobs", "INT32", scalar=True),
    # With return_log_probs: the same for the prompt.
    _input("return_prompt_log_probs", "BOOL", scalar=True),
)
_LOG_PROB_OUTPUTS = (
    # [tokens of this response, num_top_logprobs] the most probable tokens and their log probabilities, best first.
    Tensor("top_logprob_ids", "TYPE_INT32", (-1, -1)),
    Tensor("top_logprobs", "TYPE_FP32", (-1, -1)),
    # With the first tokens: of each prompt token but the first; and its alternatives.
    Tensor("prompt_log_probs", "TYPE_FP32", (-1,)),
    Tensor("prompt_top_logprob_ids", "TYPE_INT32", (-1, -1)),
    Tensor("prompt_top_logprobs", "TYPE_FP32", (-1, -1)),
)

TENSORRT_LLM_INPUTS = (
    # Parent of each draft token, -1 for the last accepted token: turns `draft_input_ids` from a chain into a tree.
    _input("draft_parents", "INT32", (-1,)),
    # Estimated probability that the path down to each draft token is accepted.
    _input("draft_probabilities", "FP32", (-1,)),
    # Which of the engine's own draft sources take part; see `pipeline.decoding.strategy`.
    _input("draft_strategy", "STRING", scalar=True),
    # Most draft tokens per step for this request, the engine's own included.
    _input("max_draft_tokens", "INT32", scalar=True),
    _input("runtime_min_p", "FP32", scalar=True),
    # Tokens that do not come among the first min_tokens, as end_id does not: for clients that end at several tokens.
    _input("late_ids", "INT32", (-1,)),
    # Presence and frequency penalties count the tokens of prompt and output from here on; 0 if left out.
    _input("prompt_ignore_length", "INT32", scalar=True),
    # The last so many of input_ids are output of an earlier request that this one continues: the grammar counts them.
    _input("num_resumed_tokens", "INT32", scalar=True),
    *_LOG_PROB_INPUTS,
    # Whose tokens the engine's own draft sources may propose; see `namespace` of `lookahead_bls`.
    _input("draft_namespace", "STRING", scalar=True),
    # Another request is to go on with this one's output: from the second on, their place is kept for a moment.
    _input("to_be_continued", "BOOL", scalar=True),
)

TENSORRT_LLM_OUTPUTS = (
    # On the last response: end_token, stop_words, length, cancelled; or "step" after a verification step with drafts.
    Tensor("finish_reason", "TYPE_STRING", (1,)),
    # With return_perf_metrics: passes of the engine that this request took part in and that emitted tokens.
    Tensor("num_steps", "TYPE_INT32", (1,)),
    *_LOG_PROB_OUTPUTS,
)

LOOKAHEAD_BLS_INPUTS = (
    # none, lookahead, trie, hybrid or auto; the profile's strategy if left out.
    _input("strategy", "STRING"),
    # Whose past outputs may be drafted from. Requests of one namespace share a trie; others never see it.
    _input("namespace", "STRING"),
    # Wrap text_input as a user's message in the model's chat template.
    _input("use_chat_template", "BOOL"),
    _input("system_prompt", "STRING"),
    # A conversation as JSON, [{"role": ..., "content": ...}]; takes the place of text_input.
    _input("messages", "STRING"),
    # The prompt as token ids; takes the place of text_input. The responses then hold output_ids and no text_output.
    _input("input_ids", "INT32", (-1,)),
    # The last so many of input_ids are output of an earlier, interrupted run of the request: min_tokens, max_tokens and
    # stop words count them, output_ids leaves them out.
    _input("num_resumed_tokens", "INT32"),
    # Added to the logits of some tokens: ids, and as many values.
    _input("logit_bias_ids", "INT32", (-1,)),
    _input("logit_bias_values", "FP32", (-1,)),
    # As in `tensorrt_llm`; for the torch engine only.
    _input("prompt_ignore_length", "INT32"),
    # A guess at the output, as in editing tasks: right parts are verified many tokens at a time.
    _input("prediction", "STRING"),
    _input("min_p", "FP32"),
    _input("lookahead_window_size", "INT32"),
    _input("lookahead_ngram_size", "INT32"),
    _input("lookahead_verification_set_size", "INT32"),
    *_LOG_PROB_INPUTS,
    # Ask for `statistics`.
    _input("return_statistics", "BOOL"),
    # Stop the requests that have this one's id; they end with what they have sent.
    _input("stop", "BOOL"),
)

LOOKAHEAD_BLS_OUTPUTS = (
    # The new tokens of this response, an end token included; only if input_ids was sent.
    Tensor("output_ids", "TYPE_INT32", (-1,)),
    # On the last response: end_token, stop_words, length or cancelled.
    Tensor("finish_reason", "TYPE_STRING", (1,)),
    # On the last response, if asked for: token ids, counts and times as one JSON object.
    Tensor("statistics", "TYPE_STRING", (1,)),
    *_LOG_PROB_OUTPUTS,
)
