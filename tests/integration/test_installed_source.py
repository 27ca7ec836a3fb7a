"""A draft source of another package, found by its entry point: config, server and bench."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pipeline.decoding.compile_cache import VARIABLE, cache_path

pytestmark = pytest.mark.slow

SOURCE = '''
import numpy as np
from typing import Literal
from pydantic import Field
from pipeline.config.schema.base import Frozen
from pipeline.config.schema.source_registry import SourceRow
from pipeline.decoding.tree import chain

class EchoDraftConfig(Frozen):
    """Drafts what followed the last token when it stood in the text before."""
    kind: Literal["echo"] = "echo"
    num_tokens: int = Field(4, ge=1, description="Tokens per draft.")

class EchoSource:
    name = "echo"
    needs_top_k = 0

    def __init__(self, config, lookahead):
        self.num_tokens = config.num_tokens

    def start(self, request_id, prompt_ids, namespace):
        pass

    def propose(self, request_id, context, budget):
        # Behind no match the whole context: a source with nothing to say at the end of a call would send nothing.
        before = np.flatnonzero(context[:-1] == context[-1])
        start = int(before[-1]) + 1 if len(before) else 0
        length = min(self.num_tokens, budget.max_nodes, budget.max_depth)
        return chain(context[start : start + length].tolist())

    def update(self, request_id, step):
        pass

    def stop(self, request_id):
        pass

ROW = SourceRow(EchoDraftConfig, "echo_source:EchoSource", frozenset({"trie", "hybrid"}), "echo", frozenset({"bls"}))
'''
SERVE = """
import json, sys
from pathlib import Path
from pipeline.server.startup import prepare
from pipeline.config.resolution import resolve_config
from tests.integration.servers import TORCH, ask, running
from tests.own_folders import own_folders

folder = Path(sys.argv[1])
where = own_folders(folder / "folders")
# The adaptive planner sends nothing where a measured pass does not repay it, and this source gives no probabilities.
settings = (*TORCH, "drafting.planner=fixed")
served = prepare(resolve_config("tiny-random-llama", str(folder / "echoing.yaml"), settings, where=where), where)
with running(served, where, folder / "run") as server:
    answers = [ask(server, strategy=name) for name in ("none", "trie")]
print(json.dumps([(answer.text, answer.statistics) for answer in answers]))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment in which the package is installed beside ours."""
    package = tmp_path / "package"
    about = package / "echo_source-1.0.dist-info"
    about.mkdir(parents=True)
    (package / "echo_source.py").write_text(SOURCE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-source\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lookahead.draft_sources]\necho = echo_source:ROW\n")
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    home = Path(__file__).parents[2]
    (site / "all.pth").write_text("\n".join([str(package), str(home), *filter(None, sys.path)]) + "\n")
    profile = (home / "configs" / "profiles" / "latency.yaml").read_text()
    sources = profile.index("  sources:\n")
    end = profile.index("\nscheduling:", sources)
    echoing = profile[:sources] + "  sources:\n    - kind: echo\n      num_tokens: 3\n" + profile[end:]
    (tmp_path / "echoing.yaml").write_text(echoing)
    return tmp_path / "venv" / "bin" / "python"


def output_of(python: Path, folder: Path, *arguments: object) -> str:
    # The machine code of this environment: the package is the same.
    settings = {"LOOKAHEAD_ENGINES": str(folder / "engines"), VARIABLE: str(cache_path().parent)}
    result = subprocess.run(
        [python, *map(str, arguments)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_source_of_another_package_is_configured_served_and_measured(python: Path, tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    (plain, _), (drafted, statistics) = json.loads(
        output_of(python, tmp_path, tmp_path / "serve.py", tmp_path).splitlines()[-1]
    )
    assert drafted == plain
    assert statistics["num_draft_tokens"] > 0

    data, out = tmp_path / "data.jsonl", tmp_path / "out.json"
    data.write_text(json.dumps({"id": 1, "task": "copy", "prompt": "abc abc abc abc"}) + "\n")
    output_of(
        python, tmp_path, "-m", "pipeline", "bench", "--model", "tiny-random-llama", "--profile",
        tmp_path / "echoing.yaml", "--set", "device=cpu", "--set", "backend=torch", "--set", "drafting.planner=fixed",
        "--data", data, "--max-new-tokens", 48, "--strategies", "trie", "--json", out,
    )  # fmt: skip
    (record,) = [each for each in json.loads(out.read_text())["requests"] if each["strategy"] == "trie"]
    assert record["identical"]
    assert {row[0] for row in record["reliability"]} == {"echo"}
