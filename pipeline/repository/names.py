"""Names in a model repository that clients and servers share."""

from __future__ import annotations

from collections.abc import Sequence

# Folder with the repository beside an engine.
REPOSITORY = "repository"
# Triton models with an engine. Stock clients call `tensorrt_llm`, which forwards requests to the first one.
TARGET_MODEL = "tensorrt_llm_engine"
# The second one, built for lookahead decoding.
LOOKAHEAD_MODEL = "tensorrt_llm_lookahead"
# The decoupled model that clients call: text to text, with drafts.
FRONT_MODEL = "lookahead_bls"
# TensorRT-LLM's names for models that send one response per request: text to text, and tokens to tokens.
STOCK_FRONT_MODEL = "tensorrt_llm_bls"
STOCK_TARGET_MODEL = "tensorrt_llm"
# Parameters of FRONT_MODEL that name the models with an engine.
TARGET_PARAMETERS = {
    TARGET_MODEL: "tensorrt_llm_model_name",
    LOOKAHEAD_MODEL: "tensorrt_llm_lookahead_model_name",
}

ENSEMBLE = "ensemble"
# All models that this program writes.
MODELS = frozenset(
    {
        *(TARGET_MODEL, LOOKAHEAD_MODEL, FRONT_MODEL, STOCK_FRONT_MODEL, STOCK_TARGET_MODEL, ENSEMBLE),
        *("preprocessing", "postprocessing"),
    }
)

# Parameter of FRONT_MODEL with the fingerprint of the engine that the repository was made for.
FINGERPRINT = "fingerprint"

CONFIG = "config.pbtxt"
VERSION = "1"


def public_models(models: Sequence[str], with_ensemble: bool) -> tuple[str, ...]:
    """The models of a repository that clients may call. The others are parts of these and do not check tenants. The
    ensemble does not check tenants either."""
    if FRONT_MODEL not in models:
        return tuple(models)
    meant = (FRONT_MODEL, STOCK_FRONT_MODEL, *([ENSEMBLE] if with_ensemble else []))
    return tuple(model for model in meant if model in models)
