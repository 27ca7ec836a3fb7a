"""Collects the events of several requests into results."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.decoding.log_probs import TokenLogProbs
from pipeline.decoding.tree import FloatArray
from pipeline.engine.submission import GenerationResult, StepEvent, Submission


@dataclass(slots=True)
class Results:
    """By request id: output so far, log probabilities, logits of the prompt, and the last event."""

    _outputs: dict[str, list[int]] = field(default_factory=dict)
    _log_probs: dict[str, TokenLogProbs] = field(default_factory=dict)
    _prompt_rows: dict[str, list[FloatArray]] = field(default_factory=dict)
    _last: dict[str, StepEvent] = field(default_factory=dict)

    def take(self, event: StepEvent) -> None:
        """Add the result of a step to its request."""
        request_id = event.request_id
        self._outputs.setdefault(request_id, []).extend(event.token_ids)
        if event.log_probs is not None:
            self._log_probs.setdefault(request_id, TokenLogProbs()).extend(event.log_probs)
        if event.prompt_rows is not None:
            self._prompt_rows[request_id] = event.prompt_rows
        if event.done:
            self._last[request_id] = event

    def of(self, submission: Submission) -> GenerationResult:
        """The result of a finished request. Raises the error that it ended with."""
        request_id = submission.request.request_id
        last = self._last[request_id]
        if last.error is not None:
            raise last.error
        return GenerationResult(
            request_id=request_id,
            prompt_ids=submission.request.prompt_ids.tolist(),
            output_ids=self._outputs[request_id],
            finish_reason=last.finish_reason,
            statistics=last.statistics,
            log_probs=self._log_probs.get(request_id),
            prompt_rows=self._prompt_rows.get(request_id),
        )
