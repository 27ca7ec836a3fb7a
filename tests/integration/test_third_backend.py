"""A backend of another package, found by its entry point: from YAML to a response of a real tritonserver."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.bench.contenders.in_process import open_in_process
from pipeline.config.folders import Folders
from pipeline.config.registry import backend_names, backend_points
from pipeline.config.resolution import resolve_config
from pipeline.decoding.request import GenerationRequest, as_token_ids
from pipeline.engine.scheduler_factory import create_scheduler
from pipeline.engine.submission import Submission
from pipeline.errors import ConfigError, ServerError
from pipeline.server.startup import prepare
from pipeline.server.state import find_server
from tests.integration.servers import ask, becomes_ready, running
from tests.servers import FREE_PORTS, wait_for
from tests.third_backend.lookup_backend import HANGS, OFFSET

SOURCE = Path(__file__).parents[1] / "third_backend" / "lookup_backend.py"
PROFILE = """
description: A lookup table
backend: lookup
drafting: {planner: fixed}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package as pip leaves it, in this process and, by a .pth file, in those that the server starts."""
    folder = tmp_path / "site"
    metadata = folder / "lookup_backend-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(SOURCE, folder)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lookup-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[lookahead.backends]\nlookup = lookup_backend:BACKEND\n")
    # Other runs may share the folder of packages, and a run that is killed leaves the file there. It changes only
    # processes of this run.
    name = f"lookup_backend_test_{os.getpid()}"
    monkeypatch.setenv(name, str(folder))
    path = Path(sysconfig.get_path("purelib")) / f"{name}.pth"
    path.write_text(f"import os, sys; sys.path.extend(filter(None, [os.environ.get({name!r})]))\n")
    monkeypatch.syspath_prepend(str(folder))
    backend_points.cache_clear()
    yield
    path.unlink()
    backend_points.cache_clear()


def test_a_table_is_served(installed: None, where: Folders, tmp_path: Path) -> None:
    profile = tmp_path / "alphabet.yaml"
    profile.write_text(PROFILE)
    assert backend_names()[-1] == "lookup"
    settings = (*FREE_PORTS, "server.gateway.request_timeout_s=15")
    served = prepare(resolve_config("tiny-random-llama", str(profile), settings, where=where), where)
    with running(served, where, tmp_path / "run") as server:
        for strategy in ("none", "hybrid"):
            answer = ask(server, text_input="x", max_tokens=30, strategy=strategy)
            assert answer.text == "yz" + "abcdefghijklmnopqrstuvwxyz" + "ab"
        # A pass that never ends: the request fails at its time limit, and the server is started again.
        with pytest.raises(ServerError, match="did not answer in time"):
            ask(server, text_input=HANGS)
        wait_for(lambda: (state := find_server(tmp_path / "run")) is not None and state.restarts > 0)
        becomes_ready(server.state)
        assert ask(server, text_input="x", max_tokens=2).text == "yz"
        assert "_verify_one" in server.log_path.read_text()
    engine = open_in_process(served.artifact).engine
    request = GenerationRequest("in-process", as_token_ids([ord("x") + OFFSET]), max_new_tokens=3)
    (result,) = create_scheduler(served.artifact, engine).run([Submission(request, "hybrid")])
    assert [chr(token - OFFSET) for token in result.output_ids] == ["y", "z", "a"]


def test_without_the_package_the_profile_is_refused_with_the_known_names(where: Folders, tmp_path: Path) -> None:
    profile = tmp_path / "alphabet.yaml"
    profile.write_text(PROFILE)
    with pytest.raises(ConfigError, match="backend: found 'lookup'; the backends are tensorrt_llm, torch"):
        resolve_config("tiny-random-llama", str(profile), where=where)
