"""Versions in fingerprints, artifacts and measurements."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pipeline
from pipeline.engine.fingerprint import commit, version_of


def test_the_commit_is_that_of_the_checkout_if_there_is_one() -> None:
    folder = str(Path(pipeline.__file__).parent)
    head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert (commit() or "").removesuffix("-dirty") == head.stdout.strip()


def test_a_package_has_a_version_or_is_not_there() -> None:
    assert version_of("numpy") == metadata.version("numpy")
    assert version_of("no-such-package") is None
