"""Requests as Dynamo passes them to a worker."""

from __future__ import annotations

from typing import Any

from pipeline.dynamo.spec import Membership, WorkerSpec

FLEET = Membership(fleet="lookahead", engine={"dtype": "float32"})
SPEC = WorkerSpec(
    triton_urls=("127.0.0.1:1",),
    entries_path="/entries",
    model="m",
    membership=FLEET,
    card_dir="/card",
    max_seq_len=100,
    max_batch_size=4,
    prompt_ignore_length=True,
)


def request(
    ids: list[int] | None = None,
    stop: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
    *annotations: str,
    **more: Any,
) -> dict[str, Any]:
    return {
        "token_ids": [5, 6, 7] if ids is None else ids,
        "stop_conditions": {"max_tokens": 10, **(stop or {})},
        "sampling_options": sampling or {},
        "annotations": list(annotations),
        **more,
    }
