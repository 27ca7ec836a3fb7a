"""Requirements against versions, and the tables in the documentation."""

from __future__ import annotations

import pytest

from pipeline.backends.tensorrt_llm import environment, release_data
from pipeline.backends.tensorrt_llm.release_data import is_met, version_tables


def test_every_container_meets_the_requirements():
    for entry in release_data.release().containers.values():
        found = {"tensorrt_llm": entry.trtllm, "tensorrt": entry.tensorrt, "torch": entry.torch}
        needs = [need for need in release_data.release().requirements if found.get(need.part)]
        assert all(is_met(need, str(found[need.part])) for need in needs)


@pytest.mark.parametrize(
    ("part", "version", "met"),
    [
        ("tensorrt_llm", "1.2.0rc8", True),
        ("tensorrt_llm", "1.2.1", True),
        ("tensorrt_llm", "1.1.0", False),
        ("tensorrt_llm", "1.3.0rc3", False),
        ("tensorrt_llm", "1.20.0", False),
        ("tensorrt", "10.14.1.48", True),
        ("tensorrt", "10.9.0.34", False),
        ("torch", "2.10.0a0+b4e4ee81d3.nv25.12", True),
        ("torch", "2.9.0", False),
        ("driver", "580.95.05", True),
        ("driver", "575.57.08", False),
        ("driver", "unknown", False),
    ],
)
def test_a_version_lies_in_its_range_or_not(part, version, met):
    (requirement,) = (need for need in release_data.release().requirements if need.part == part)
    assert is_met(requirement, version) is met


def test_the_tables_hold_every_container_and_requirement():
    needs, matrix = version_tables()
    assert [row[0] for row in matrix.rows] == list(reversed(release_data.release().containers))
    assert [row[1] for row in needs.rows] == [requirement.range for requirement in release_data.release().requirements]
    for requirement in release_data.release().requirements:
        assert requirement.part in (*environment.PACKAGES, "driver")
