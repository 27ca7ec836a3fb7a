"""A checkpoint from the Hugging Face hub: only the files that are needed, into the hub's own cache.

The token comes from the environment (HF_TOKEN) or the hub's login; HF_HUB_OFFLINE=1 uses the cache alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.disk import require_space
from pipeline.checkpoint.local import CODE_FILES, check_config_file, open_folder
from pipeline.config.schema import HubCheckpoint
from pipeline.errors import CheckpointError

_NEEDED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
# Original formats of some publishers, as large as the weights themselves.
_NOT_NEEDED = ("*/*", "consolidated*")


def fetch_from_hub(
    source: HubCheckpoint,
    architecture: str,
    cache_dir: Path,
    check_config: Callable[[Path], object],
    *,
    with_code: bool = False,
) -> Checkpoint:
    """The snapshot of one commit, downloaded as far as it is not in the cache. check_config: is shown the folder when
    it holds config.json, before anything large is fetched. with_code: its Python code too. Raises CheckpointError."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    needed = (*_NEEDED, *CODE_FILES) if with_code else _NEEDED
    name = f"{source.repo_id} (revision {source.revision})"
    try:
        folder = Path(snapshot_download(source.repo_id, revision=source.revision, allow_patterns=["config.json"]))
        check_config_file(folder, architecture)
        check_config(folder)
        if not constants.HF_HUB_OFFLINE:
            _require_space(source, needed, Path(constants.HF_HUB_CACHE))
        folder = Path(
            snapshot_download(
                source.repo_id,
                revision=source.revision,
                allow_patterns=list(needed),
                ignore_patterns=list(_NOT_NEEDED),
            )
        )
    except GatedRepoError as error:
        raise CheckpointError(
            f"{name} is gated. Ask for access on its hub page, then set HF_TOKEN to a token of that account."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"{source.repo_id} has no revision '{source.revision}' on the hub. Correct it in the model config."
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{source.repo_id} is not on the hub, or is private. "
            "Correct the id, or set HF_TOKEN to a token that may read it."
        ) from error
    except LocalEntryNotFoundError as error:
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise CheckpointError(
            f"{name} is not in the local cache, and {offline}. Fetch it on a machine with network, "
            "or name a local folder in the model config (source: local)."
        ) from error
    except _transport_errors() as error:
        raise CheckpointError(
            f"{name} cannot be fetched from the hub ({type(error).__name__}). "
            "Check the network and run the command again; files already fetched are kept."
        ) from error
    return open_folder(folder, architecture, cache_dir, hub_hash(source.repo_id, folder.name), with_code=with_code)


def hub_hash(repo_id: str, commit: str) -> str:
    """Content hash of a snapshot: the commit pins every file."""
    return hashlib.sha256(f"hub\0{repo_id}\0{commit}".encode()).hexdigest()


def _require_space(source: HubCheckpoint, patterns: Sequence[str], hub_cache: Path) -> None:
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    try:
        info = HfApi().model_info(source.repo_id, revision=source.revision, files_metadata=True)
    except HfHubHTTPError:
        raise
    except _transport_errors():
        return  # without network the cache may still hold everything; the download itself says if it does not
    missing = 0
    for file in info.siblings or []:
        needed = any(fnmatch(file.rfilename, pattern) for pattern in patterns)
        if not needed or any(fnmatch(file.rfilename, pattern) for pattern in _NOT_NEEDED):
            continue
        if not isinstance(try_to_load_from_cache(source.repo_id, file.rfilename, revision=info.sha), str):
            missing += file.size or 0
    require_space(hub_cache, missing, f"Fetching {source.repo_id}", CheckpointError)


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the hub's HTTP library raises when there is no connection; which library that is depends on the hub's
    version."""
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError"))
