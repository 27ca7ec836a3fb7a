"""Fixtures of all tests. Models use one thread: tiny models gain nothing from more."""

import functools
import gc
import os
from collections.abc import Iterator

import hypothesis
import pytest
import typer
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from pipeline.config.threads import WAIT_POLICY

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(*WAIT_POLICY)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pipeline.cli.app import build_app
from pipeline.config.places import Places
from tests.own_places import own_places

# Examples take longer on a busy machine. `--hypothesis-profile=thorough` runs many more where a test names no number.
hypothesis.settings.register_profile("lookahead", deadline=None, max_examples=60)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("lookahead")


def pytest_collection() -> None:
    """What the import of all tests allocates stays: searching it for garbage takes a sixth of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _once() -> Iterator[None]:
    """What takes longer than most tests that need it: the command line is created once, and a text of a Triton config
    is parsed once."""
    parse = text_format.Parse
    parsed = functools.cache(lambda text: parse(text, pb.ModelConfig()))

    def parse_once(text: str, message: pb.ModelConfig) -> pb.ModelConfig:
        message.CopyFrom(parsed(text))
        return message

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.cli.app.build_app", functools.cache(lambda: typer.main.get_command(build_app())))
        patch.setattr(text_format, "Parse", parse_once)
        yield


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Engines and caches of a test file's own, in a folder whose name a shell would split and expand."""
    return own_places(tmp_path_factory.mktemp("places (of & tests)"))
