"""Every source of checkpoints has a description."""

from __future__ import annotations

from pipeline.checkpoint.fetch import describe_source
from pipeline.config.schema import CheckpointSource, GgufCheckpoint, LocalCheckpoint, RandomCheckpoint
from tests.unit.checkpoint.sources import TINY, hub_source, model_of, wheel_source


def test_each_source_is_described() -> None:
    sources: list[CheckpointSource] = [
        LocalCheckpoint(path="/x"),
        hub_source(),
        GgufCheckpoint(path="/x.gguf"),
        wheel_source(),
        RandomCheckpoint(config=TINY),
    ]
    assert [describe_source(model_of(source)) for source in sources] == [
        "folder /x",
        "hub someone/something@main",
        "GGUF file /x.gguf",
        "wheel carrier 1.0",
        "random weights, seed 0",
    ]
