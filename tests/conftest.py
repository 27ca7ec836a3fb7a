"""Fixtures of all tests. Models use one thread: tiny models gain nothing from more."""

import asyncio
import functools
import gc
import importlib
import inspect
import itertools
import logging
import os
import pickle
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import hypothesis
import numba
import pytest
import typer
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from pipeline.config.hardware import has_cuda_driver
from pipeline.config.threads import WAIT_POLICY

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(*WAIT_POLICY)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Without a GPU, the package `triton` interprets the kernels for GPUs. It reads this when it is imported, and torch may
# import it.
if not has_cuda_driver():
    os.environ["TRITON_INTERPRET"] = "1"

from pipeline.cli.app import build_app
from pipeline.config.folders import Folders
from pipeline.config.yaml_text import parse_yaml
from pipeline.decoding.compile_cache import cache_path
from pipeline.server import ports
from tests.logs import Logs
from tests.own_folders import own_folders
from tests.triton_requests import backend_module

# Machine code of tests holds loops of the package. numba alone would use it again after a change of those.
numba.config.CACHE_DIR = str(cache_path() / "tests")

# What a shell starts in the background ignores SIGINT, and under nohup SIGHUP. Tests of signals would not end there.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Examples take longer on a busy machine. `--hypothesis-profile=thorough` runs many more where a test names no number.
hypothesis.settings.register_profile("lookahead", deadline=None, max_examples=40)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("lookahead")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_collection(session: pytest.Session) -> None:
    """What the import of all tests allocates stays: searching it for garbage takes a sixth of that time."""
    gc.disable()
    if worker := getattr(session.config, "workerinput", None):
        place = int(worker["workerid"].removeprefix("gw")) / worker["workercount"]
        choose_own_ports(place, worker["testrunuid"])
        import_tests(session.config, place)


def choose_own_ports(place: float, run_id: str) -> None:
    """Let each process of a run try free ports from a place of its own on: what one has chosen and not bound yet, no
    other one takes. Other runs on this machine begin elsewhere."""
    start = round((random.Random(run_id).random() + place) * len(ports._FREE))
    ports._numbers = itertools.count(start)


def import_tests(config: pytest.Config, start: float) -> None:
    """Import the files of tests from a fraction of them on, so that each process first rewrites the asserts of other
    files, and finds those that the others rewrote. Collection reports what cannot be imported."""
    paths = [path for name in config.args for path in sorted(Path(name).absolute().rglob("test_*.py"))]
    first = round(start * len(paths))
    for path in (*paths[first:], *paths[:first]):
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Tests leave little garbage: at Python's own thresholds they search for it for 4 of 120 seconds."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _once() -> Iterator[None]:
    """What takes longer than most tests that need it: the command line and the TLS settings of HTTP clients are created
    once, and a text of a Triton config or a config in YAML is parsed once."""
    parse = text_format.Parse
    parsed = functools.cache(lambda text: parse(text, pb.ModelConfig()))
    parsed_yaml = functools.cache(lambda text: pickle.dumps(parse_yaml(text)))

    def parse_once(text: str, message: pb.ModelConfig) -> pb.ModelConfig:
        message.CopyFrom(parsed(text))
        return message

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.cli.app.build_app", functools.cache(lambda: typer.main.get_command(build_app())))
        patch.setattr("httpx._transports.default.create_ssl_context", functools.cache(httpx.create_ssl_context))
        patch.setattr(text_format, "Parse", parse_once)
        patch.setattr("pipeline.config.loading.parse_yaml", lambda text: pickle.loads(parsed_yaml(text)))
        yield


@pytest.fixture
def triton_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the module of Triton's Python backend, which exists inside a server only."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend_module())


@pytest.fixture
def logs() -> Iterator[Logs]:
    """What the test logs. pytest's own plugin visits each of some thousand loggers six times for every test."""
    handler, known = Logs(), logging.Logger.manager.loggerDict.values()
    ends = [logger for logger in known if isinstance(logger, logging.Logger) and not logger.propagate]
    for logger in (logging.getLogger(), *ends):
        logger.addHandler(handler)
    yield handler
    for logger in (logging.getLogger(), *ends):
        logger.removeHandler(handler)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Engines and caches of a test file's own, in a folder whose name a shell would split and expand."""
    return own_folders(tmp_path_factory.mktemp("folders (of & tests)"))
