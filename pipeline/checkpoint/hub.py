"""A checkpoint from the Hugging Face hub: downloads only the needed files, into the hub's own cache.

The token comes from the environment (HF_TOKEN) or the hub's login; HF_HUB_OFFLINE=1 uses the cache alone.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.checkpoint.disk import require_space
from pipeline.checkpoint.local import CODE_FILES, check_config_file, open_folder
from pipeline.config.bare_checkpoint import transport_errors
from pipeline.config.schema import HubCheckpoint
from pipeline.errors import CheckpointError

_NEEDED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
# Original formats of some publishers, as large as the weights themselves.
_NOT_NEEDED = ("*/*", "consolidated*")
# Other formats of weights, for error messages.
_OTHER_WEIGHTS = (".bin", ".pth", ".pt", ".gguf", ".h5", ".msgpack")
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT)


def fetch_from_hub(
    source: HubCheckpoint,
    architecture: str,
    cache_dir: Path,
    check_config: Callable[[Path], object],
    *,
    with_code: bool = False,
) -> Checkpoint:
    """Download the missing files of one commit's snapshot. check_config: called with the folder after the download of
    config.json, before that of the weights. with_code: also download Python code. Raises CheckpointError."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
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
            _check_files(source, needed, Path(constants.HF_HUB_CACHE))
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
        if error.__cause__ is not None and (refusal := _refusal(error.__cause__)):
            raise CheckpointError(f"{name} cannot be fetched: {refusal}") from error
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise CheckpointError(
            f"{name} is not in the local cache, and {offline}. Fetch it on a machine with network, "
            "or name a local folder in the model config (source: local)."
        ) from error
    except transport_errors() as error:
        if refusal := _refusal(error):
            raise CheckpointError(f"{name} cannot be fetched: {refusal}") from error
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            raise CheckpointError(
                f"{name} cannot be written to {constants.HF_HUB_CACHE}: {error.strerror}. Fix that, or point HF_HOME "
                "to another folder; files already fetched are kept."
            ) from error
        raise CheckpointError(
            f"{name} cannot be fetched from the hub ({type(error).__name__}). "
            "Check the network and run the command again; files already fetched are kept."
        ) from error
    except HFValidationError as error:
        raise CheckpointError(f"model.checkpoint.repo_id: {error}") from error
    except ValueError as error:  # invalid JSON in a response, or a token that no header can hold
        raise CheckpointError(
            f"{name} cannot be fetched: the request to the hub is invalid, or its response cannot be read ({error}). "
            "Check HF_TOKEN and HF_ENDPOINT, and whether a proxy responds instead of the hub."
        ) from error
    return open_folder(folder, architecture, cache_dir, hub_hash(source.repo_id, folder.name), with_code=with_code)


def hub_hash(repo_id: str, commit: str) -> str:
    """Content hash of a snapshot, which its commit determines."""
    return hashlib.sha256(f"hub\0{repo_id}\0{commit}".encode()).hexdigest()


def _check_files(source: HubCheckpoint, patterns: Sequence[str], hub_cache: Path) -> None:
    """Raise CheckpointError if the repository has no weights, or the disk has no space for the missing files."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    try:
        info = HfApi().model_info(source.repo_id, revision=source.revision, files_metadata=True)
    except HfHubHTTPError:
        raise
    except transport_errors():
        return  # no network: the cache may hold all files, and otherwise the download raises the error
    files = {file.rfilename: file.size or 0 for file in info.siblings or []}
    wanted = [
        name
        for name in files
        if any(fnmatch(name, pattern) for pattern in patterns)
        and not any(fnmatch(name, pattern) for pattern in _NOT_NEEDED)
    ]
    if not any(name.endswith(".safetensors") for name in wanted):
        kinds = [kind for kind in _OTHER_WEIGHTS if any(name.endswith(kind) for name in files)]
        found = f"; it has {' and '.join(kinds)} files" if kinds else ""
        raise CheckpointError(
            f"{source.repo_id} (revision {source.revision}) has no safetensors{found}. Name a revision or a "
            "repository that has them, or fetch a GGUF file and name that (source: gguf)."
        )
    missing = sum(
        files[name]
        for name in wanted
        if not isinstance(try_to_load_from_cache(source.repo_id, name, revision=info.sha), str)
    )
    require_space(hub_cache, missing, f"Fetching {source.repo_id}", CheckpointError, moved_by="HF_HOME")


def _refusal(error: BaseException) -> str | None:
    """Explain the hub's error response. None if there is no response."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return None
    if status == 401:
        return "the hub rejects the token. Set HF_TOKEN to a valid one, or unset it."
    if status == 403:
        return "the hub denies access (HTTP 403). Set HF_TOKEN to a token that may read this repository."
    return f"the hub answers with HTTP {status}. Run the command again later; files already fetched are kept."
