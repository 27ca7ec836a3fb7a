"""The model repository for the LLM API: one model, `tensorrt_llm`, with the code in triton_repo/llmapi/.

<folder>/tensorrt_llm/config.pbtxt          tensors as in the stock llmapi model
<folder>/tensorrt_llm/1/model.py            our code, which sets the drafter
<folder>/tensorrt_llm/1/model.yaml          keyword arguments of LLM(), also sufficient for the stock model.py
<folder>/tensorrt_llm/1/drafts.json         draft settings
"""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml
from tritonclient.grpc import model_config_pb2 as pb

from pipeline.checkpoint.disk import atomic_folder
from pipeline.config.schema import ResolvedConfig
from pipeline.errors import RepositoryError
from pipeline.llmapi import Method
from pipeline.llmapi.settings import draft_settings, model_yaml
from pipeline.repository import model_config
from pipeline.repository.contract import model_contract
from pipeline.repository.names import CONFIG, VERSION

MODEL = "tensorrt_llm"
SOURCE = Path("llmapi") / MODEL / VERSION
MODEL_YAML, DRAFTS = "model.yaml", "drafts.json"


def render_llmapi(
    resolved: ResolvedConfig, method: Method, out_dir: Path, source: Path, decoupled: bool = False
) -> Path:
    """Write the repository to out_dir atomically, and return out_dir. source: the folder triton_repo/. decoupled: allow
    streams, which excludes `infer`; otherwise the model sends one response, as the stock model does. Raises
    RepositoryError if source has no code."""
    settings = draft_settings(resolved, method)
    arguments = model_yaml(resolved, settings, decoupled)
    code = source / SOURCE / "model.py"
    if not code.is_file():
        raise RepositoryError(f"There is no {code}. Set LOOKAHEAD_HOME to a checkout with triton_repo/.")
    with atomic_folder(out_dir) as partial:
        version = partial / MODEL / VERSION
        version.mkdir(parents=True)
        (partial / MODEL / CONFIG).write_text(model_config.to_text(llmapi_config(decoupled)), encoding="utf-8")
        (version / MODEL_YAML).write_text(yaml.safe_dump(arguments, sort_keys=False), encoding="utf-8")
        (version / DRAFTS).write_text(settings.model_dump_json(indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(code, version / "model.py")
    return out_dir


def llmapi_config(decoupled: bool = False) -> pb.ModelConfig:
    """Config with the tensors of the stock llmapi model, without Triton's own batching."""
    contract = model_contract("llmapi")
    config = model_config.new_config(MODEL, 0, contract.inputs, contract.outputs)
    config.model_transaction_policy.decoupled = decoupled
    return config
