"""The files of a model that Dynamo's front end needs: configuration, tokenizer and chat template, without weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.engine.artifact import Artifact

CARD = "card"


def write_card(artifact: Artifact, run_dir: Path) -> Path:
    """Copy the files of an artifact into a folder of its own below the run folder. Returns the folder."""
    folder = run_dir / CARD / artifact.resolved.model.name / artifact.resolved.profile.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    configuration = artifact.engine_dir.glob("*config.json")
    for path in (*configuration, *artifact.tokenizer_dir.iterdir()):
        shutil.copy2(path, folder / path.name)
    return folder
