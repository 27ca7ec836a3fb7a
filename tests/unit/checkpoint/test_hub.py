"""The hub's own client against a small local hub: fetched files, token, and messages of errors."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from tests.http_server import Handler, serving
from tests.processes import running

COMMIT = "0123456789abcdef" * 2 + "01234567"
TOKEN = "hf_token_of_a_test"

# Runs in a process of its own, because the hub's client reads its environment when it is imported: each line read is
# of another environment, in a process that only imports the client. What the client imports is imported once.
SCRIPT = """
import contextlib, io, json, os, pathlib, sys
import huggingface_hub.hf_api, numpy, safetensors
for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
    del sys.modules[name]
import pipeline.checkpoint.hub, pipeline.cli.app, pipeline.cli.build, pipeline.config.bare_checkpoint
from pipeline.checkpoint.fetch import fetch
from pipeline.cli import main
from pipeline.config.schema import HubCheckpoint, ModelConfig
from pipeline.errors import CheckpointError

def fetched(repo_id, revision, *trusted):
    model = ModelConfig(
        name="tiny", architecture="LlamaForCausalLM", num_parameters=10, max_position_embeddings=64,
        checkpoint=HubCheckpoint(repo_id=repo_id, revision=revision), trust_remote_code=bool(trusted),
    )
    try:
        return sorted(path.name for path in fetch(model, pathlib.Path(os.environ["CACHE"])).folder.iterdir())
    except CheckpointError as error:
        return str(error)

def planned(name):
    try:
        main(["engine", "--dry-run", "-m", name])
    except SystemExit as end:
        return end.code

assert "huggingface_hub" not in sys.modules
for line in sys.stdin:
    environment, wanted = json.loads(line)
    if not os.fork():
        os.environ.update(environment)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            results = [fetched(*each) if isinstance(each, list) else planned(each) for each in wanted]
        print(json.dumps([results, shown.getvalue()]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def weights() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


FILES = {
    "config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": weights(),
    "consolidated.safetensors": weights(),
    "original/consolidated.00.pth": b"x",
    "README.md": b"# readme",
    "modeling_own.py": b"raise SystemExit",
    "own.tiktoken": b"",
}


class Hub(Handler):
    """Answers as the hub does for one public, one gated and one unknown repository."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append((path, self.headers.get("Authorization")))
        if "/some/answer-" in path:
            self.answer(b"<html>", status=int(path.split("/some/answer-")[1][:3]))
        elif "/some/pickled" in path:
            self.send_config_alone(path)
        elif "/some/gated" in path:
            self.refuse(403, "GatedRepo")
        elif "/some/public" not in path:
            self.refuse(404, "RepoNotFound")
        elif "/nowhere" in path:
            self.refuse(404, "RevisionNotFound")
        elif path.startswith("/api/models/some/public/tree"):
            self.answer(json.dumps([self.entry(name) for name in FILES]).encode())
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name, "size": len(data), "blobId": "0" * 40} for name, data in FILES.items()]
            self.answer(json.dumps({"id": "some/public", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            data = FILES[path.split(f"/resolve/{COMMIT}/")[1]]
            etag = hashlib.sha1(data).hexdigest()
            self.answer(data, **{"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def send_config_alone(self, path: str) -> None:
        files = ("config.json", "pytorch_model.bin")
        if "/tree/" in path:
            self.answer(json.dumps([self.entry("config.json")]).encode())
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name, "size": 1} for name in files]
            self.answer(json.dumps({"id": "some/pickled", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            self.answer(FILES["config.json"], **{"ETag": '"1"', "X-Repo-Commit": COMMIT})

    def entry(self, name: str) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": len(FILES[name]), "oid": hashlib.sha1(FILES[name]).hexdigest()}

    def refuse(self, status: int, code: str) -> None:
        self.answer(b"{}", status, **{"X-Error-Code": code, "X-Error-Message": code})


@pytest.fixture
def endpoint() -> Iterator[str]:
    Hub.asked.clear()
    with serving(Hub) as port:
        yield f"http://127.0.0.1:{port}"


class Result(NamedTuple):
    """What a case gave for each that it wanted, and what it wrote to stdout and stderr."""

    found: list[Any]
    shown: str


Runner = Callable[..., Result]


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[Any]]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with running([sys.executable, "-c", SCRIPT], env=own, **pipes) as process:
        yield process


@pytest.fixture
def run(process: subprocess.Popen[Any], tmp_path: Path) -> Runner:
    """Runs a case: what it wants, a model to plan, or repository, revision and trust of a checkpoint to fetch; and its
    environment. The cases of a test have one cache."""
    own = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "CACHE": str(tmp_path / "cache")}

    def run(wanted: Sequence[Any], **environment: str) -> Result:
        print(json.dumps([own | environment, wanted]), file=process.stdin, flush=True)
        return Result(*json.loads(process.stdout.readline()))  # type: ignore[union-attr]

    return run


def test_needed_files_are_fetched_with_the_token_and_refusals_are_sentences(endpoint: str, run: Runner) -> None:
    names = [("some/public", "main"), ("some/gated", "main"), ("some/unknown", "main"), ("some/public", "nowhere")]
    later = [("some/public", "main"), ("some/other", "main")]
    public, gated, unknown, nowhere = run(names, HF_ENDPOINT=endpoint, HF_TOKEN=TOKEN).found
    assert public == ["config.json", "model.safetensors", "tokenizer.json"]
    assert {token for path, token in Hub.asked if "/some/" in path} == {f"Bearer {TOKEN}"}
    assert "some/gated (revision main) is gated" in gated
    assert "some/unknown is not on the hub, or is private" in unknown
    assert "some/public has no revision 'nowhere'" in nowhere

    offline = run(later, HF_HUB_OFFLINE="1").found
    assert offline[0] == public, "the cache serves offline"
    assert "HF_HUB_OFFLINE is set" in offline[1]
    unreachable = run(later, HF_ENDPOINT="http://127.0.0.1:9").found
    assert unreachable[0] == public, "the cache serves without a connection too"
    assert "the hub cannot be reached" in unreachable[1]


def test_each_answer_has_its_own_sentence(endpoint: str, run: Runner) -> None:
    names = ("answer-401", "answer-403", "answer-500", "answer-200", "pickled", "two--dashes")
    wanted = [*((f"some/{name}", "main") for name in names), ("some/public", "main", "trusted")]
    *results, trusted = run(wanted, HF_ENDPOINT=endpoint, HF_TOKEN=TOKEN).found
    assert trusted == ["config.json", "model.safetensors", "modeling_own.py", "own.tiktoken", "tokenizer.json"]
    for text, expected in zip(
        results,
        (
            "the hub rejects the token. Set HF_TOKEN",
            "the hub denies access (HTTP 403). Set HF_TOKEN",
            "the hub answers with HTTP 500. Run the command again later",
            "or its response cannot be read (Expecting value",
            "some/pickled (revision main) has no safetensors; it has .bin files",
            "model.checkpoint.repo_id: Cannot have -- or .. in repo_id",
        ),
        strict=True,
    ):
        assert expected in text
        assert TOKEN not in text
    (refused,) = run([("some/public", "main")], HF_ENDPOINT=endpoint, HF_HOME="/dev/null").found
    assert "cannot be written to /dev/null/hub: Not a directory" in refused


def test_a_repository_without_a_yaml_is_refused_at_the_first_failure(endpoint: str, run: Runner) -> None:
    unreachable = run(["some/public"], HF_ENDPOINT="http://127.0.0.1:9")
    refused = run(["some/answer-500", "some/unknown"], HF_ENDPOINT=endpoint)
    assert (unreachable.found, refused.found) == ([2], [2, 2])
    for line, expected in zip(
        (unreachable.shown + refused.shown).splitlines(),  # one of each, without retries
        (
            "some/public is not in the local cache, and the hub cannot be reached",
            "some/answer-500 cannot be fetched: Server error '500",
            "some/unknown cannot be fetched: 404 Client Error",
        ),
        strict=True,
    ):
        assert line.startswith(f"error: {expected}")
