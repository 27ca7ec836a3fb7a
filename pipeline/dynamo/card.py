"""Model card of Dynamo's front end: the configuration, tokenizer and chat template of a model, without weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from pipeline.engine.artifact import Artifact
from pipeline.gateway.tool_guides import HERMES

CARD = "card"
_TOOLS_TEMPLATE = Path(__file__).with_name("hermes_tools.jinja")
_MENTIONS_TOOLS = re.compile(r"\btools\b")


def card_dir(artifact: Artifact, run_dir: Path) -> Path:
    """Folder of an artifact's card in a run folder."""
    return run_dir / CARD / artifact.resolved.model.name


def write_card(artifact: Artifact, run_dir: Path) -> Path:
    """Write the card of an artifact into a subfolder of the run folder. Returns the subfolder."""
    folder = card_dir(artifact, run_dir)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    configuration = artifact.engine_dir.glob("*config.json")
    for path in (*configuration, *artifact.tokenizer_dir.iterdir()):
        shutil.copyfile(path, folder / path.name)  # without its mode, which may be read-only
    if artifact.resolved.model.tool_call_parser == HERMES:
        _add_tools(folder / "chat_template.jinja")
    _ensure_template(folder)
    _name_architecture(folder / "config.json", artifact.resolved.model.architecture)
    return folder


def _ensure_template(folder: Path) -> None:
    """Add a chat template that refuses every conversation if the model has none, because Dynamo's front end does not
    load a model without a template. Completions do not use it."""
    template, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    has_one = settings.is_file() and json.loads(settings.read_text(encoding="utf-8")).get("chat_template")
    if not has_one and not template.is_file():
        template.write_text("{{ raise_exception('this model has no chat template') }}", encoding="utf-8")


def _add_tools(path: Path) -> None:
    """Prepend our template for tools to a chat template without tools."""
    template = path.read_text(encoding="utf-8") if path.is_file() else ""
    if template and not _MENTIONS_TOOLS.search(template):
        path.write_text(_TOOLS_TEMPLATE.read_text(encoding="utf-8") + template, encoding="utf-8")


def _name_architecture(path: Path, architecture: str) -> None:
    """Add the class name if config.json has none, as with GGUF files: Dynamo's front end refuses a model without it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if not config.get("architectures"):
        path.write_text(json.dumps({**config, "architectures": [architecture]}, indent=2) + "\n", encoding="utf-8")
