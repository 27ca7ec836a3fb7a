"""Model card of Dynamo's front end: the configuration, tokenizer and chat template of a model, without weights."""

from __future__ import annotations

import json
import re
import shutil
from itertools import takewhile
from pathlib import Path

from pipeline.checkpoint.tokenizer_files import VOCABULARY
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
    _complete_template(folder, with_tools=artifact.resolved.model.tool_call_parser == HERMES)
    _name_architecture(folder / "config.json", artifact.resolved.model.architecture)
    return folder


def prompt_prefix(folder: Path) -> tuple[int, ...]:
    """The tokens that the tokenizer of a card puts in front of a text, such as BOS."""
    from tokenizers import Tokenizer

    encoded = Tokenizer.from_file(str(folder / VOCABULARY)).encode("a")
    added = takewhile(lambda pair: pair[1], zip(encoded.ids, encoded.special_tokens_mask, strict=True))
    return tuple(token for token, _ in added)


def _complete_template(folder: Path, with_tools: bool) -> None:
    """Put our template for tools before a chat template without tools, if with_tools. Add a template that refuses every
    conversation if the model has none, because Dynamo's front end does not load a model without a template. Completions
    do not use it."""
    path, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    template: object = None  # settings may have a list of named templates
    if path.is_file():
        template = path.read_text(encoding="utf-8")
    elif settings.is_file():
        template = json.loads(settings.read_text(encoding="utf-8")).get("chat_template")
    if not template:
        path.write_text("{{ raise_exception('this model has no chat template') }}", encoding="utf-8")
    elif with_tools and isinstance(template, str) and not _MENTIONS_TOOLS.search(template):
        # The file takes precedence over the settings.
        path.write_text(_TOOLS_TEMPLATE.read_text(encoding="utf-8") + template, encoding="utf-8")


def _name_architecture(path: Path, architecture: str) -> None:
    """Add the class name if config.json has none, as with GGUF files: Dynamo's front end refuses a model without it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if not config.get("architectures"):
        path.write_text(json.dumps({**config, "architectures": [architecture]}, indent=2) + "\n", encoding="utf-8")
