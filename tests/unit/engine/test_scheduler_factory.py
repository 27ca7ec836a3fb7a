"""The vocabulary of an artifact, for grammars."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from pipeline.config.folders import Folders
from pipeline.engine.build import build_engine
from pipeline.engine.scheduler_factory import artifact_vocabulary
from tests.unit.engine.builds import tiny


def test_an_end_token_outside_the_vocabulary_is_passed_over(where: Folders, tmp_path: Path) -> None:
    built = build_engine(tiny(), where).artifact
    artifact = replace(built, folder=Path(shutil.copytree(built.folder, tmp_path / "engine")))
    for named, expected in (([-1, 512, 7], 7), (-1, 1), (None, 1)):
        settings = json.dumps({"eos_token_id": named})
        (artifact.engine_dir / "generation_config.json").write_text(settings, encoding="utf-8")
        assert artifact_vocabulary(artifact, 512).end_id == expected
