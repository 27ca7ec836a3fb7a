"""The torch engine in strict mode, served as two models by the BLS loop.

`tensorrt_llm` plays an engine for external drafts, `tensorrt_llm_lookahead` one built for lookahead decoding, as a
config with speculation `both` has them. Sizes are small so that every limit is near.
"""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np

from pipeline.config.folders import Folders
from pipeline.repository import model_config
from pipeline.repository.names import FRONT_MODEL, LOOKAHEAD_MODEL, TARGET_MODEL, TARGET_PARAMETERS
from pipeline.server.startup import PreparedServer
from pipeline.triton_models.text_codec import TextCodec
from pipeline.triton_models.text_request import text_request
from tests.integration.servers import prepared

MAX_SEQ_LEN, LONGEST_PROMPT, MAX_DRAFT_LEN = 320, 256, 6
OVERRIDES = (
    "tensorrt_llm.speculation=both",
    "engine.strict_tensorrt_llm=true",
    "drafting.planner=fixed",  # neither measured with the build nor held back by what calls cost
    "drafting.max_draft_tokens=16",
    f"engine.max_seq_len={MAX_SEQ_LEN}",
    f"engine.max_num_tokens={LONGEST_PROMPT}",  # without chunked context no prompt may be longer
    "engine.prefill_chunk=128",
    f"tensorrt_llm.max_external_draft_len={MAX_DRAFT_LEN}",
)
PROMPT = "the rat at the tea; the rat at the tea; the rat"


def strict_repository(where: Folders) -> PreparedServer:
    """The repository of speculation `both`: a second strict model beside the first, and a front that knows of it."""
    rendered = prepared(where, *OVERRIDES)
    folder = rendered.repository
    shutil.copytree(folder / TARGET_MODEL, folder / LOOKAHEAD_MODEL)
    for name, values in (
        (LOOKAHEAD_MODEL, {"strict_tensorrt_llm": "lookahead"}),
        (FRONT_MODEL, {TARGET_PARAMETERS[LOOKAHEAD_MODEL]: LOOKAHEAD_MODEL}),
    ):
        path = folder / name / "config.pbtxt"
        message = model_config.read(path)
        message.name = name
        model_config.set_parameters(message, values)
        path.write_text(model_config.to_text(message))
    return rendered


def request_of(codec: TextCodec, text: str, max_tokens: int, **fields: Any) -> Any:
    """The request that a client's fields stand for, as the BLS model reads it."""
    dtypes = {"seed": np.uint64, "end_id": np.int32}
    tensors = {"text_input": np.asarray([[text.encode()]], np.object_), "max_tokens": np.asarray([[max_tokens]])}
    tensors |= {name: np.asarray([[value]], dtypes.get(name, np.float32)) for name, value in fields.items()}
    return text_request(codec, tensors, "reference", "none", 1 << 20).generation
