"""EngineArtifact -> Triton model repository: for each model a config.pbtxt and the code from triton_repo/, and the
settings of the server. The models read these at every start: a later command for the same profile, such as a bench,
leaves its own beside the engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from pipeline.checkpoint.disk import atomic_folder
from pipeline.config.loading import RESOLVED
from pipeline.config.resolution import dump_resolved
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.artifact import Artifact
from pipeline.engine.backend import backend_of
from pipeline.errors import RepositoryError
from pipeline.repository import model_config
from pipeline.repository.names import (
    CONFIG,
    MODELS,
    REPOSITORY,
    STOCK_FRONT_MODEL,
    STOCK_TARGET_MODEL,
    TARGET_PARAMETERS,
    VERSION,
)

# Folder below triton_repo/ with the code of a model, if it is not the model's name.
_CODE = {
    **dict.fromkeys((STOCK_FRONT_MODEL, STOCK_TARGET_MODEL), "single_response"),
    **dict.fromkeys(("preprocessing", "postprocessing"), "text_conversion"),
}


def repository_dir(artifact: Artifact) -> Path:
    """Folder of the model repository that serves the artifact, if no other is named."""
    return artifact.folder / REPOSITORY


def require_replaceable(folder: Path) -> None:
    """Raise RepositoryError if a new repository would replace other files than models of this program."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RepositoryError(f"{folder} is a file. Use --out with a new folder.")
    if others := [path.name for path in folder.iterdir() if path.name not in {*MODELS, RESOLVED}]:
        raise RepositoryError(f"{folder} contains {others[0]}, and would be replaced. Use --out with a new folder.")


def render(resolved: ResolvedConfig, artifact: Artifact, out_dir: Path, source: Path) -> None:
    """Write the repository to out_dir atomically. Replaces an existing one.

    source: the folder triton_repo/ with the code of the models. Raises RepositoryError if code is missing.
    """
    configs = model_configs(resolved, artifact)
    with atomic_folder(out_dir) as partial:
        (partial / RESOLVED).write_text(dump_resolved(resolved), encoding="utf-8")
        for config in configs:
            _write_model(config, source, partial)


def model_configs(resolved: ResolvedConfig, artifact: Artifact) -> list[pb.ModelConfig]:
    """Configs of all models of the repository. Raises RepositoryError if an engine does not state its vocabulary."""
    backend = backend_of(resolved.backend)
    targets = backend.target_configs(resolved, artifact)
    front = model_config.lookahead_bls(resolved, artifact, vocab_size(backend.vocab_dir(artifact)))
    model_config.set_parameters(front, {TARGET_PARAMETERS[target.name]: target.name for target in targets})
    return [
        model_config.preprocessing(resolved, artifact),
        *targets,
        model_config.postprocessing(resolved, artifact),
        front,
        model_config.single_response(STOCK_TARGET_MODEL, targets[0], resolved),
        model_config.single_response(STOCK_FRONT_MODEL, front, resolved),
        model_config.ensemble(resolved),
    ]


def vocab_size(engine_dir: Path) -> int:
    """Size of the vocabulary from an engine's config.json. Raises RepositoryError if the file does not state it."""
    path = engine_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RepositoryError(f"{path} cannot be read: {error}. Build the engine again with --force.") from error
    for section in (config, config.get("text_config", {}), config.get("pretrained_config", {})):
        if "vocab_size" in section:
            return int(section["vocab_size"])
    raise RepositoryError(f"{path} has no vocab_size. Build the engine again with --force.")


def check_repository(folder: Path) -> tuple[str, ...]:
    """Names of the models in a rendered repository. Raises RepositoryError if there are none or one cannot be read."""
    paths = sorted(folder.glob(f"*/{CONFIG}"))
    if not paths:
        raise RepositoryError(f"There is no model repository in {folder}. Render it with `lookahead repo`.")
    return tuple(model_config.read(path).name for path in paths)


def _write_model(config: pb.ModelConfig, source: Path, folder: Path) -> None:
    target = folder / config.name
    version = target / VERSION
    version.mkdir(parents=True)
    (target / CONFIG).write_text(model_config.to_text(config), encoding="utf-8")
    if config.backend != "python":
        return  # Triton requires the version folder; the code is in the backend
    for path in _code(source / _CODE.get(config.name, config.name) / VERSION):
        shutil.copyfile(path, version / path.name)


def _code(folder: Path) -> Iterable[Path]:
    if not (folder / "model.py").is_file():
        raise RepositoryError(f"There is no model.py in {folder}. Set LOOKAHEAD_HOME to a checkout with triton_repo/.")
    return sorted(folder.glob("*.py"))
