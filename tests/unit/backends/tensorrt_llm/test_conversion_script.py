"""The conversion worker against classes that accept only what the contract lists."""

from __future__ import annotations

import enum
import importlib.machinery
import json
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

from pipeline.backends.tensorrt_llm import conversion_script
from pipeline.backends.tensorrt_llm.conversion import conversion_of
from pipeline.backends.tensorrt_llm.conversion_script import convert
from pipeline.config.folders import folders
from tests.patience import PATIENCE_S
from tests.trt_configs import RELEASE_FACTS, trt_context


class Model:
    """A model class of TensorRT-LLM as far as the contract describes it."""

    log: list[tuple] = []  # noqa: RUF012 - shared on purpose, emptied by the fixture

    @classmethod
    def from_hugging_face(cls, hf_model_or_dir, dtype="auto", mapping=None, quant_config=None, **kwargs):
        assert not kwargs
        model = cls()
        model.config = types.SimpleNamespace(mapping=mapping)
        cls.log.append(("load", hf_model_or_dir, dtype, mapping, quant_config))
        return model

    def save_checkpoint(self, output_dir, save_config=True):
        mapping = self.config.mapping
        (Path(output_dir) / f"rank{mapping.rank}.safetensors").write_bytes(b"")  # makes no folder
        if save_config:
            (Path(output_dir) / "config.json").write_text(json.dumps({"mapping": vars(mapping)}))
        self.log.append(("save", mapping.rank, save_config))

    @classmethod
    def quantize(
        cls, hf_model_dir, output_dir, dtype="auto", mapping=None, quant_config=None, *, device="cuda",
        calib_dataset="cnn_dailymail", calib_batches=512, calib_batch_size=1, calib_max_seq_length=512,
        random_seed=1234, tokenizer_max_seq_length=2048,
    ):  # fmt: skip
        cls.log.append(("quantize", hf_model_dir, dtype, mapping, quant_config, calib_dataset, calib_batches))


class Mapping:
    def __init__(
        self, world_size=1, rank=0, gpus_per_node=8, *, cp_size=1, tp_size=1, pp_size=1, moe_tp_size=-1, moe_ep_size=-1
    ):
        assert world_size == tp_size * pp_size * cp_size
        self.world_size, self.rank = world_size, rank
        self.tp_size, self.pp_size, self.cp_size = tp_size, pp_size, cp_size
        self.attn_tp_size, self.attn_cp_size = tp_size * cp_size, 1


@pytest.fixture
def tensorrt_llm(monkeypatch):
    algos = enum.Enum(
        "QuantAlgo",
        {name: name for name in sorted({*RELEASE_FACTS["quant_algos"], *RELEASE_FACTS["kv_cache_quant_algos"]})},
    )
    modules = {
        "tensorrt_llm": {},
        "tensorrt_llm.models": {"LLaMAForCausalLM": Model, "QWenForCausalLM": Model},
        "tensorrt_llm.mapping": {"Mapping": Mapping},
        "tensorrt_llm.models.modeling_utils": {"QuantConfig": lambda **fields: fields},
        "tensorrt_llm.quantization": {},
        "tensorrt_llm.quantization.mode": {"QuantAlgo": algos},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)  # detect_hardware looks for it
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
    Model.log.clear()
    return algos


def call_of(tmp_path: Path, *overrides: str) -> dict:
    return conversion_of(trt_context(*overrides), tmp_path / "source", tmp_path / "out", tmp_path / "request.json").call


def test_each_rank_is_loaded_and_saved_and_only_the_first_writes_the_config(tmp_path, tensorrt_llm):
    convert(call_of(tmp_path, "model.parallelism.tensor=2", ".quantization=int8_wo", ".speculation=none"))
    loads = [entry for entry in Model.log if entry[0] == "load"]
    assert [entry[3].rank for entry in loads] == [0, 1]
    assert all(entry[1:3] == (str(tmp_path / "source"), "float16") for entry in loads)
    assert loads[0][4] == {"quant_algo": tensorrt_llm.W8A16}
    assert [entry for entry in Model.log if entry[0] == "save"] == [("save", 0, True), ("save", 1, False)]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json", "rank0.safetensors", "rank1.safetensors",
    }  # fmt: skip


def test_context_parallel_ranks_share_a_file(tmp_path, tensorrt_llm):
    """The builder takes the file of rank // cp_size."""
    convert(call_of(tmp_path, "model.parallelism.tensor=2", ".context_parallel=2", ".speculation=none"))
    loads = [entry[3] for entry in Model.log if entry[0] == "load"]
    assert [(mapping.rank, mapping.tp_size) for mapping in loads] == [(0, 2), (1, 2)]
    written = json.loads((tmp_path / "out" / "config.json").read_text())["mapping"]
    assert (written["world_size"], written["tp_size"], written["cp_size"], written["attn_tp_size"]) == (4, 2, 2, -1)
    assert sorted(path.name for path in (tmp_path / "out").glob("rank*")) == ["rank0.safetensors", "rank1.safetensors"]


def test_plain_weights_get_no_quant_config(tmp_path, tensorrt_llm):
    convert(call_of(tmp_path))
    assert Model.log[0][4] is None


def test_calibrated_formats_go_through_quantize(tmp_path, tensorrt_llm):
    convert(call_of(tmp_path, ".quantization=fp8", ".kv_cache_dtype=fp8", ".calib_size=64", ".speculation=trie"))
    ((kind, source, dtype, _, quant, dataset, batches),) = Model.log
    assert (kind, source, dtype) == ("quantize", str(tmp_path / "source"), "float16")
    assert quant == {"quant_algo": tensorrt_llm.FP8, "kv_cache_quant_algo": tensorrt_llm.FP8}
    assert (dataset, batches) == ("cnn_dailymail", 64)


def test_the_command_reads_its_request(tmp_path, tensorrt_llm, monkeypatch):
    request = tmp_path / "request.json"
    request.write_text(json.dumps(call_of(tmp_path)))
    monkeypatch.setattr(sys, "argv", ["conversion_script", str(request)])
    runpy.run_path(conversion_script.__file__, run_name="__main__")
    assert Model.log


def test_the_worker_needs_nothing_but_the_standard_library(tmp_path):
    """The container has TensorRT-LLM, but other versions of our requirements."""
    code = (
        "import sys; import pipeline.backends.tensorrt_llm.conversion_script; "
        "print(sorted({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=folders().home, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {"pipeline", "__main__"}
