"""Every shipped model under every profile, and every way to get a configuration wrong."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.hardware import Hardware
from pipeline.config.loading import names_in
from pipeline.config.places import Places, places
from pipeline.config.resolution import dump_resolved, load_model, load_profile, load_resolved, resolve_config
from pipeline.config.rules import LOOKAHEAD_OFF
from pipeline.config.schema import TrieDraftConfig
from pipeline.engine.builder import conflicts_with_backend
from pipeline.errors import ConfigError

SHIPPED = places({})
MODELS = names_in(SHIPPED.models)
PROFILES = names_in(SHIPPED.profiles)
CPU = Hardware(gpu=None, compute_capability=0, has_tensorrt_llm=False)
H100 = Hardware(gpu="H100", compute_capability=90, has_tensorrt_llm=True)


def faults_of(*overrides: str, model: str = "smollm2-135m", profile: str = "latency") -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(model, profile, overrides, where=SHIPPED, hardware=CPU)
    return str(caught.value)


def test_the_promised_models_and_profiles_are_shipped() -> None:
    assert {"smollm2-135m", "llama2-7b", "llama2-13b", "codellama-7b"} <= set(MODELS)
    assert {"llama3.1-8b", "qwen2.5-coder-7b", "mistral-7b", "tiny-random-llama"} <= set(MODELS)
    assert set(PROFILES) == {"latency", "throughput", "balanced"}


@pytest.mark.parametrize("hardware", [CPU, H100], ids=["cpu", "h100"])
@pytest.mark.parametrize(("model", "profile"), list(itertools.product(MODELS, PROFILES)))
def test_every_model_resolves_under_every_profile(model: str, profile: str, hardware: Hardware, tmp_path: Path) -> None:
    resolved = resolve_config(model, profile, where=SHIPPED, hardware=hardware)

    assert (resolved.model.name, resolved.profile.name) == (model, profile)
    assert resolved.device == ("cpu" if hardware is CPU else "cuda")
    assert resolved.backend == ("torch" if hardware is CPU else "tensorrt_llm")
    assert resolved.dtype == ("float32" if hardware is CPU else resolved.model.gpu_dtype)
    assert resolved.lookahead.origin != "unstated"
    assert "auto" not in (resolved.profile.device, resolved.profile.backend)
    path = tmp_path / "resolved.yaml"
    path.write_text(dump_resolved(resolved), encoding="utf-8")
    assert load_resolved(path) == resolved
    assert dump_resolved(load_resolved(path)) == path.read_text(encoding="utf-8")
    path.write_text(resolved.model_dump_json(), encoding="utf-8")
    assert load_resolved(path) == resolved, "JSON loads as well as YAML"


@pytest.mark.parametrize("path", sorted((SHIPPED.home / "configs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_yaml_opens_with_what_it_is_and_how_to_use_it(path: Path) -> None:
    head = [line for line in path.read_text(encoding="utf-8").splitlines()[:6] if line.startswith("#")]
    assert [line.split()[1] for line in head[:3]] == ["What:", "Needs:", "Use:"]
    assert any("verride" in line for line in head)


def test_profiles_differ_where_it_matters() -> None:
    latency, balanced, throughput = (load_profile(name, SHIPPED) for name in ("latency", "balanced", "throughput"))
    assert latency.engine.max_batch_size < balanced.engine.max_batch_size < throughput.engine.max_batch_size
    assert latency.drafting.max_draft_tokens > balanced.drafting.max_draft_tokens > throughput.drafting.max_draft_tokens
    assert latency.tensorrt_llm.speculation == "lookahead"


@pytest.mark.parametrize(
    ("model", "profile", "w", "n", "g", "draft_len"),
    [
        ("llama2-7b", "latency", 15, 5, 15, 119),
        ("llama2-13b", "latency", 10, 5, 10, 79),
        ("qwen2.5-coder-7b", "latency", 8, 8, 8, 111),
        ("qwen2.5-coder-7b", "balanced", 3, 8, 3, 41),
        ("llama3.1-8b", "throughput", 4, 3, 4, 15),
    ],
)
def test_lookahead_values_are_those_of_their_origin(
    model: str, profile: str, w: int, n: int, g: int, draft_len: int
) -> None:
    lookahead = resolve_config(model, profile, where=SHIPPED, hardware=CPU).lookahead
    found = (lookahead.max_window_size, lookahead.max_ngram_size, lookahead.max_verification_set_size)
    assert found == (w, n, g)
    assert lookahead.max_draft_len == draft_len


def test_overrides_reach_profile_and_model() -> None:
    resolved = resolve_config(
        "smollm2-135m",
        "latency",
        [
            "engine.max_batch_size=8",
            "model.dtype=bfloat16",
            "drafting.sources.0.branch_length=5",
            "profile.server.http_port=0",
        ],
        where=SHIPPED,
        hardware=CPU,
    )
    assert resolved.profile.engine.max_batch_size == 8
    assert resolved.dtype == "bfloat16"
    assert resolved.profile.drafting.sources[0].branch_length == 5  # type: ignore[union-attr]
    assert resolved.profile.server.http_port == 0
    assert resolved.profile.engine.max_seq_len == 4096, "the rest of the section stays"


def test_the_path_of_a_snapshot_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["drafting.sources.0.snapshot=past.trie"]
    first, *_ = resolve_config(
        "smollm2-135m", "latency", overrides, where=SHIPPED, hardware=CPU
    ).profile.drafting.sources
    assert isinstance(first, TrieDraftConfig)
    assert first.snapshot == str(tmp_path / "past.trie")


def test_a_model_without_lookahead_values_has_it_off() -> None:
    resolved = resolve_config("smollm2-135m", "latency", ["model.lookahead={}"], where=SHIPPED, hardware=CPU)
    assert resolved.lookahead == LOOKAHEAD_OFF
    assert resolved.lookahead.max_draft_len == 0


def test_all_faults_are_reported_at_once_with_file_key_and_remedy() -> None:
    text = faults_of(
        "engine.max_batch_sise=3",
        "engine.max_seq_len=long",
        "server.http_port=8001",
        "drafting.max_draft_tokens=200",
        "drafting.sources.1.kind=promt",
        "trategy=trie",
        "model.dtype=flaot16",
        "model.checkpoint.pakage=x",
        "nonsense",
    )
    for expected in (
        "9 faults",
        "engine.max_batch_sise: unknown key. Did you mean 'max_batch_size'?",
        "engine.max_seq_len: found 'long'; should be a valid integer",
        "configs/profiles/latency.yaml:",
        "server.grpc_port: found 8001, which server.http_port has too",
        "drafting.max_draft_tokens: found 200",
        "drafting.sources.1: found kind 'promt'",
        "Did you mean 'prompt'?",
        "trategy: unknown key. Did you mean 'drafting.strategy'?",
        "model.dtype: found 'flaot16'; should be 'float32', 'float16' or 'bfloat16'. Did you mean 'float16'?",
        "model.checkpoint.pakage: unknown key. Did you mean 'package'?",
        "found 'nonsense'; should be KEY=VALUE",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["engine.max_draft_tokens=8"], "drafting.max_draft_tokens: found 32; the engine holds"),
        (["engine.max_draft_tokens=15", "drafting.max_draft_tokens=15"], None),
        (["engine.max_draft_tokens=14", "drafting.max_draft_tokens=14"], "W = 5, N = 3, G = 3 needs 15"),
        (["engine.max_num_tokens=1024", "engine.max_batch_size=64"], "needs 64 x (32 + 1) = 2112"),
        (["engine.max_num_tokens=2111", "engine.max_batch_size=64", "engine.prefill_chunk=512"], "2112"),
        (["engine.prefill_chunk=8192"], "engine.prefill_chunk: found 8192; a pass holds at most"),
        (["engine.max_seq_len=8193"], "was made for at most 8192 positions"),
        (["engine.max_seq_len=128"], "leave no room"),
        (["engine.max_draft_tokens=0", "drafting.max_draft_tokens=0", "drafting.strategy=none"], None),
        (["engine.max_draft_tokens=0", "drafting.max_draft_tokens=0"], "so it should be 'none'"),
        (
            ["server.http_port=9000", "server.metrics_port=9000"],
            "server.metrics_port: found 9000, which server.http_port",
        ),
        (["server.http_port=0", "server.grpc_port=0", "server.metrics_port=0"], None),
        (["drafting.sources=[{kind: trie}, {kind: trie}]"], "holds 'trie' twice"),
        (["drafting.strategy=hybrid", "drafting.sources=[{kind: prompt}]"], "lacks 'window' and 'trie'"),
        (["drafting.strategy=trie", "drafting.sources=[{kind: prompt}]"], "lacks 'trie'"),
        (["device=cuda"], "torch finds no CUDA device"),
        (["backend=tensorrt_llm", "device=cpu"], "backend tensorrt_llm needs a GPU"),
        (["model.parallelism.pipeline=2"], "the torch backend has no pipeline parallelism"),
        (
            ["model.parallelism.tensor=2", "engine.lookahead_parallel=2"],
            "engine.lookahead_parallel: found 2, and model.parallelism.tensor is 2; the torch backend has one",
        ),
        (
            [
                "model.parallelism.tensor=3",
                "model.shape={hidden_size: 64, intermediate_size: 96, num_layers: 2, num_attention_heads: 4, "
                "num_key_value_heads: 2, head_size: 16, vocab_size: 512}",
            ],
            "model.parallelism.tensor: found 3, which does not divide the 2 key/value heads",
        ),
        (
            ["model.parallelism.tensor=2", "engine.quantization=int8"],
            "found 'int8', which is not spread over model.parallelism.tensor = 2 ranks",
        ),
        (["model.lookahead.latncy.max_window_size=3"], "model.lookahead.latncy.max_ngram_size: is missing"),
        (
            ["model.lookahead.fast={max_window_size: 2, max_ngram_size: 2, max_verification_set_size: 1}"],
            "model.lookahead.fast: names no profile. Known: default, balanced",
        ),
        (
            ["model.lookahead.latency={max_window_size: 8, max_ngram_size: 1, max_verification_set_size: 1}"],
            "--set: model.lookahead.latency: found (W, N, G) = (8, 1, 1); N = 1 switches lookahead off and needs "
            "W = 1 and G = 0. Set those, or N to 2 or more.",
        ),
        (
            ["model.lookahead.latency.max_ngram_size=1"],
            "--set: model.lookahead.latency: found (W, N, G) = (5, 1, 3); N = 1",
        ),
        (
            ["tensorrt_llm.parameters.num_nodes=[1, 2]"],
            "--set: tensorrt_llm.parameters.num_nodes: found [1, 2]; should be true or false, a number or a text.",
        ),
        (
            ["tensorrt_llm.build_flags.max_lora_rank={a: 1}"],
            "build_flags.max_lora_rank: found {'a': 1}; should be true or false, a whole number or a text.",
        ),
        (
            ["model.checkpoint={source: random, config: {vocab_size: null}}"],
            "model.checkpoint.config.vocab_size: found None; should be a number, a text, true or false or a list",
        ),
        (["model.checkpoint={source: hub}"], "model.checkpoint.repo_id: is missing"),
        (["model.checkpoint={path: x}"], "needs the key 'source'"),
        (["model.checkpoint={source: hup, repo_id: a/b}"], "found source 'hup'"),
        (["model.checkpoint.sha256=abc"], "model.checkpoint.sha256: found 'abc'"),
        (["engine.max_batch_size=true"], "should be a valid integer"),
        (["engine.max_batch_size='8'"], "should be a valid integer"),
        (["engine.max_batch_size=0"], "should be greater than or equal to 1"),
        (["engine=4"], "engine: found 4"),
        (["name=fast"], "name: found 'fast'"),
        (["drafting.sources.9.top_k=1"], "cannot be reached"),
        (["model.checkpoint.version=9.9"], "found the number 9.9; should be a text. Put it in quotes."),
        (["server.startup_timeout_s=5"], None),
    ],
)
def test_combinations(overrides: list[str], expected: str | None) -> None:
    if expected is None:
        resolve_config("smollm2-135m", "latency", overrides, where=SHIPPED, hardware=CPU)
    else:
        assert expected in faults_of(*overrides)


def test_a_value_that_fits_no_type_is_one_fault() -> None:
    assert "faults" not in faults_of("tensorrt_llm.parameters.num_nodes=[1, 2]")


def test_settings_that_do_not_go_together_are_found_in_the_file_that_was_laid_over(tmp_path: Path) -> None:
    lookahead = "{max_window_size: 7, max_ngram_size: 3, max_verification_set_size: 7}"
    write(tmp_path / "family.yaml", f"architecture: LlamaForCausalLM\nlookahead:\n  default: {lookahead}\n")
    own = write(
        tmp_path / "mine.yaml",
        "base: family.yaml\nnum_parameters: 20\nmax_position_embeddings: 8192\n"
        "checkpoint: {source: local, path: weights}\nlookahead:\n  default:\n    max_ngram_size: 1\n",
    )
    with pytest.raises(ConfigError, match=r"mine\.yaml:7: model\.lookahead\.default: found \(W, N, G\) = \(7, 1, 7\)"):
        resolve_config(str(own), "latency", where=SHIPPED, hardware=CPU)


def test_a_conflict_is_not_reported_on_top_of_the_fault_that_causes_it() -> None:
    assert "faults" not in faults_of("engine.max_draft_tokens=many")


def test_unknown_names_are_answered_with_a_suggestion_and_the_list() -> None:
    text = faults_of(model="smolm2-135m")
    assert "Did you mean 'smollm2-135m'?" in text
    assert "tiny-random-llama" in text
    assert "Did you mean 'latency'?" in faults_of(profile="latncy")


def write(path: Path, data: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path


def test_a_model_yaml_of_the_users_own_takes_its_base_and_its_lines_are_named(tmp_path: Path) -> None:
    write(tmp_path / "family.yaml", {"architecture": "LlamaForCausalLM", "num_parameters": 10, "dtype": "bfloat16"})
    own = write(
        tmp_path / "mine.yaml",
        "base: family.yaml\nnum_parameters: 20\nmax_position_embeddings: 8192\n"
        "checkpoint: {source: local, path: weights}\n",
    )
    resolved = resolve_config(str(own), "latency", where=SHIPPED, hardware=CPU)
    assert (resolved.model.name, resolved.model.num_parameters, resolved.dtype) == ("mine", 20, "bfloat16")
    assert resolved.model.checkpoint.path == str(Path.cwd() / "weights")  # type: ignore[union-attr]

    write(tmp_path / "family.yaml", "architecture: LlamaForCausalLM\nnum_parameters: 10\ndtypo: float32\n")
    text = faults_of(model=str(own))
    assert "family.yaml:3: model.dtypo: unknown key. Did you mean 'dtype'?" in text


def test_a_checkpoint_of_another_source_replaces_that_of_the_base(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", {"checkpoint": {"source": "hub", "repo_id": "a/b", "revision": "main"}})
    own = write(
        tmp_path / "own.yaml",
        {
            "base": "base.yaml",
            "architecture": "LlamaForCausalLM",
            "num_parameters": 1,
            "max_position_embeddings": 4096,
            "checkpoint": {"source": "gguf", "path": "/x.gguf"},
        },
    )
    assert load_model(str(own), SHIPPED).checkpoint.source == "gguf"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "is no valid YAML"),
        ("- 1\n- 2\n", "should hold keys and values; found a list"),
        ("dtype: float32\ndtype: float16\n", "dtype: is written twice"),
        ("base: nowhere.yaml\n", "there is no file"),
        ("name: other\n", "should be 'own', as the file"),
        ("", "architecture: is missing"),
        ("~\n", "architecture: is missing"),
        (
            "description: no\n",
            "own.yaml:1: model.description: found false, which YAML also reads yes, no",
        ),
        ("on: 1\n", "own.yaml:1: model.on: unknown key"),
        ("a: &a [*a]\n", "own.yaml is no valid YAML: lists and mappings are nested too deeply, or an anchor"),
    ],
)
def test_broken_files(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in faults_of(model=str(write(tmp_path / "own.yaml", text)))


def test_a_base_has_no_base_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "one.yaml", "base: two.yaml\n")
    assert "a base has no base of its own" in faults_of(model=str(write(tmp_path / "own.yaml", "base: one.yaml\n")))


def test_a_checkpoint_folder_serves_as_model(tmp_path: Path) -> None:
    folder = tmp_path / "My Model"
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
    write(folder / "config.json", json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(48))
    model = resolve_config(str(folder), "latency", where=SHIPPED, hardware=CPU).model
    assert (model.name, model.architecture, model.num_parameters) == ("my-model", "LlamaForCausalLM", 12)
    assert model.chat_template is False
    (folder / "config.json").unlink()
    assert "is no checkpoint: it holds no config.json" in faults_of(model=str(folder))


def test_backend_is_settled_by_what_the_machine_has() -> None:
    def backend(hardware: Hardware, *overrides: str) -> tuple[str, str]:
        resolved = resolve_config("llama2-7b", "latency", overrides, where=SHIPPED, hardware=hardware)
        return resolved.backend, resolved.device

    assert backend(CPU) == ("torch", "cpu")
    assert backend(H100) == ("tensorrt_llm", "cuda")
    assert backend(H100, "device=cpu") == ("torch", "cpu")
    assert backend(H100, "backend=torch") == ("torch", "cuda")
    assert backend(CPU, "backend=tensorrt_llm") == ("tensorrt_llm", "cuda"), "plans are made on any machine"
    assert backend(Hardware("V100", 70, has_tensorrt_llm=True)) == ("torch", "cuda")


def test_resolved_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_resolved(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is no resolved config"):
        load_resolved(write(tmp_path / "list.yaml", "[1]"))
    with pytest.raises(ConfigError, match=r"model: is missing"):
        load_resolved(write(tmp_path / "half.yaml", "device: cpu\n"))


def test_places_follow_the_environment(tmp_path: Path) -> None:
    found = places({"LOOKAHEAD_ENGINES": str(tmp_path / "e"), "LOOKAHEAD_CACHE": str(tmp_path / "c")})
    assert (found.engines, found.cache) == (tmp_path / "e", tmp_path / "c")
    assert places({"XDG_CACHE_HOME": str(tmp_path)}).cache == tmp_path / "lookahead"
    assert isinstance(found, Places)
    with pytest.raises(ConfigError, match="LOOKAHEAD_HOME"):
        places({"LOOKAHEAD_HOME": str(tmp_path)})


KEYS = st.sampled_from(
    [
        *("engine", "engine.max_batch_size", "engine.max_num_tokens", "engine.x.y", "drafting.sources", "drafting"),
        *("drafting.sources.0", "drafting.sources.0.kind", "server.http_port", "tensorrt_llm.speculation", "device"),
        *("model.checkpoint", "model.checkpoint.source", "model.lookahead", "model.lookahead.latency", "model.name"),
        *("model.lookahead.latency.max_ngram_size", "model", "profile", "1.2", "name", "backend", "model.dtype"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["trie", "hub"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "source", "x", "max_bytes"]) | st.text(max_size=3), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=4))
def test_whatever_is_overridden_it_resolves_or_every_fault_is_told(overrides: list[tuple[str, object]]) -> None:
    texts = [f"{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in overrides]
    try:
        resolve_config("smollm2-135m", "latency", texts, where=SHIPPED, hardware=CPU)
    except ConfigError as error:
        told = str(error)
    else:
        told = "nothing wrong"
    assert told.strip()


def test_sizes_that_are_written_anew_lose_what_was_said_of_the_old_ones(tmp_path: Path) -> None:
    one = "model.lookahead.latency.max_window_size=3"
    resolved = resolve_config("llama2-13b", "latency", (one,), where=SHIPPED, hardware=H100)
    assert resolved.lookahead.origin == "set on the command line"
    both = (one, "model.lookahead.latency.origin=measured here")
    assert (
        resolve_config("llama2-13b", "latency", both, where=SHIPPED, hardware=H100).lookahead.origin == "measured here"
    )

    (tmp_path / "base").symlink_to(SHIPPED.models / "base")
    mine = tmp_path / "mine.yaml"
    text = (SHIPPED.models / "llama2-7b.yaml").read_text(encoding="utf-8")
    mine.write_text(text + "\nlookahead: {latency: {max_window_size: 3}}\n", encoding="utf-8")
    resolved = resolve_config(str(mine), "latency", where=SHIPPED, hardware=H100)
    assert (resolved.lookahead.max_window_size, resolved.lookahead.origin) == (3, "unstated")
    assert resolve_config("llama2-7b", "latency", where=SHIPPED, hardware=H100).lookahead.origin.startswith("arXiv")


def test_the_torch_engines_sizes_are_not_asked_of_tensorrt_llm() -> None:
    overrides = ("engine.max_batch_size=256", "engine.max_num_tokens=8192", "engine.prefill_chunk=9000")
    with pytest.raises(ConfigError, match="3 faults"):
        resolve_config("llama2-13b", "latency", ("backend=torch", "device=cpu", *overrides), where=SHIPPED)
    assert resolve_config("llama2-13b", "latency", ("backend=tensorrt_llm", *overrides), where=SHIPPED)


def test_a_fault_of_the_backend_alone_is_told_once() -> None:
    overrides = ["backend=tensorrt_llm", "drafting.strategy=hybrid"]
    with pytest.raises(ConfigError) as caught:
        resolve_config("llama2-13b", "latency", overrides, where=SHIPPED, backend_rules=conflicts_with_backend)
    assert [key for key, _ in caught.value.faults] == ["drafting.strategy"]
    assert "a TensorRT-LLM engine has one speculative mode" in str(caught.value)


def test_faults_of_the_backend_come_with_those_of_the_files() -> None:
    overrides = [
        "backend=tensorrt_llm",
        "tensorrt_llm.speculation=trie",
        "tensorrt_llm.kv_cache_dtype=int8",
        "tensorrt_llm.tokens_per_block=20",
        "engine.prefillchunk=3",
    ]
    with pytest.raises(ConfigError) as caught:
        resolve_config("llama2-13b", "latency", overrides, where=SHIPPED, backend_rules=conflicts_with_backend)
    text = str(caught.value)
    assert text.startswith("3 faults in the configuration:")
    assert "--set: tensorrt_llm.speculation: found 'trie', which needs paged context attention" in text
    assert [key for key, _ in caught.value.faults] == [
        "engine.prefillchunk",
        "tensorrt_llm.tokens_per_block",
        "tensorrt_llm.speculation",
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("enginee.max_seq_len=1", "--set: enginee: unknown key. Did you mean 'engine'?"),
        ("model.name=x", "--set: model.name: found 'x'; the name is that of the file"),
        ("model.dtype.x=1", "--set: model.dtype.x: cannot be reached"),
        ("engine.max_seq_len=2020-99-99", "--set: engine.max_seq_len: found '2020-99-99'"),
        ("engine.max_seq_len=" + 5000 * "9", "should be a value as in YAML (Exceeds the limit"),
        ("engine={max_seq_len: 1, max_seq_len: 2}", "--set: engine.max_seq_len: is written twice"),
        ("server.host=on", "--set: server.host: found true, which YAML also reads"),
    ],
)
def test_faults_of_overrides_name_the_override_and_the_whole_key(override: str, expected: str) -> None:
    assert expected in faults_of(override)


def test_a_name_that_no_model_can_have_is_told_with_what_to_do(tmp_path: Path) -> None:
    assert "rename the file" in faults_of(model=str(write(tmp_path / "My Model.yaml", "dtype: float32\n")))
