"""Servers shared by several files. Tests that kill a server start their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from xdist.scheduler import LoadScopeScheduling

from pipeline.backends.tensorrt_llm.strict import strict_profile
from pipeline.config.folders import Folders
from pipeline.dynamo.fleet import Fleet, openai_url, start_fleet, stop_fleet
from pipeline.engine.scheduler_factory import create_scheduler
from pipeline.engine.submission import Submission
from pipeline.engine.torch.load import load_engine
from pipeline.server.server import RunningServer
from pipeline.server.service import find_services
from pipeline.server.startup import PreparedServer
from pipeline.server.state import find_replicas
from pipeline.triton_models.text_codec import TextCodec, load_codec
from tests.integration.servers import prepared, running
from tests.integration.stock_clients import Stock
from tests.integration.strict_repository import strict_repository
from tests.own_folders import own_folders
from tests.patience import PATIENCE_S
from tests.servers import check_log, left_over

# Files that share a server run in one process, so that each server is started once.
SHARED = (
    {"server", "server_ends", "stock_clients", "stock_streams", "structured_output", "gateway_fuzz"},
    {"strict", "strict_target"},
    {"openai", "openai_tools"},
)
# The longest files, which run first: else one process would still run such a file while the others have none left.
LONGEST = ("server", "failover", "etcd", "validation", "join", "openai", "gateway", "server_ends", "strict", "ranks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


class ByServer(LoadScopeScheduling):
    """Files are the units that pytest-xdist gives to processes, except for those that share a server."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        name = Path(path).stem.removeprefix("test_")
        return next((" ".join(sorted(files)) for files in SHARED if name in files), path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServer:
    config.option.loadscopereorder = False  # it would begin with the files of most tests
    return ByServer(config, log)


@pytest.fixture(scope="package")
def shared_where(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Where the engine of `server` lies: in a folder whose name a shell would split and expand."""
    return own_folders(tmp_path_factory.mktemp("folders (of & tests)"))


@pytest.fixture(scope="package")
def served(shared_where: Folders) -> PreparedServer:
    # With costs measured on this machine, how many drafts a step verifies would depend on what else runs.
    return prepared(shared_where, "drafting.planner=fixed")


@pytest.fixture(scope="package")
def server(
    served: PreparedServer, shared_where: Folders, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The tiny model as it is served by default, but for the planner."""
    with running(served, shared_where, tmp_path_factory.mktemp("run folder é")) as server:
        yield server


@pytest.fixture(scope="package")
def strict_where(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return own_folders(tmp_path_factory.mktemp("strict"))


@pytest.fixture(scope="package")
def strict_served(strict_where: Folders) -> PreparedServer:
    return strict_repository(strict_where)


@pytest.fixture(scope="package")
def strict(
    strict_served: PreparedServer, strict_where: Folders, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server of two models that keep to TensorRT-LLM's contract."""
    with running(strict_served, strict_where, tmp_path_factory.mktemp("run")) as server:
        yield server


@pytest.fixture(scope="package")
def codec(strict_served: PreparedServer) -> TextCodec:
    return load_codec(strict_served.artifact.tokenizer_dir, strict_served.artifact.engine_dir)


@pytest.fixture(scope="package")
def reference(strict_served: PreparedServer) -> Any:
    """Plain decoding in this process, by the same engine without a server or drafts."""
    artifact = replace(strict_served.artifact, resolved=strict_profile(strict_served.resolved))
    scheduler = create_scheduler(artifact, load_engine(artifact))

    def decode(request: Any) -> list[int]:
        return scheduler.run([Submission(request, "none")])[0].output_ids

    return decode


@pytest.fixture(params=["grpc", "http"])
def stock(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Stock]:
    if request.param == "grpc":
        stock = Stock(grpc, server.state.grpc_url)
    else:
        patience = {"connection_timeout": PATIENCE_S, "network_timeout": PATIENCE_S}
        stock = Stock(http, server.state.http_url.removeprefix("http://"), **patience)
    yield stock
    stock.client.close()


@pytest.fixture(scope="package")
def openai_fleet(shared_where: Folders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The tiny model behind the OpenAI API, found by its folder and stopped as by another process."""
    folder, temporary = (tmp_path_factory.mktemp(name) for name in ("run", "temporary"))
    settings = ("server.openai=true", "model.tool_call_parser=hermes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        fleet = start_fleet(prepared(shared_where, *settings), shared_where, folder, detach=True)
    try:
        assert [service.name for service in find_services(folder)] == ["front-end", "gateway", "worker-1"]
        yield fleet
    finally:
        stopped = stop_fleet(folder)
    assert stopped == fleet.state, stopped  # else why its guard has started it again
    assert stop_fleet(folder) is None
    assert not find_services(folder)
    assert not find_replicas(folder)
    assert not list(temporary.iterdir())
    for state in (fleet.state, *(service.state for service in fleet.services)):
        assert not left_over(state.server_id)
    check_log(fleet.servers[0].log_path)


@pytest.fixture(scope="package")
def client(openai_fleet: Fleet) -> openai.OpenAI:
    url = openai_url(openai_fleet.servers[0].run_dir)
    assert url is not None
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)
