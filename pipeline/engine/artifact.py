"""Built engines on disk. They are written atomically and described by a manifest; a changed file is an error.

    <engines>/<model>/<profile>/
        engine/          files of the backend: config.json and weights (safetensors; rank files for TensorRT-LLM)
        tokenizer/       files of AutoTokenizer.from_pretrained
        resolved.yaml    the ResolvedConfig
        manifest.json    fingerprint, sizes and hashes of all files above, command, time, commit
        ...              folders of later stages (repository/), which are not part of the manifest

Profiles with the same weights share them through hard links.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.checkpoint.disk import PARTIAL, atomic_folder, link_or_copy, make_folder
from pipeline.checkpoint.hashing import cached_sha256
from pipeline.config.folders import Folders
from pipeline.config.loading import RESOLVED
from pipeline.config.resolution import dump_resolved, load_resolved
from pipeline.config.schema import Frozen, ResolvedConfig
from pipeline.engine.backend import backend_of
from pipeline.engine.fingerprint import Fingerprint, commit, differences
from pipeline.errors import BuildError, ConfigError
from pipeline.files import wait_for_lock, write_atomically, written_beside

ENGINE, TOKENIZER, MANIFEST = "engine", "tokenizer", "manifest.json"
LOCKS = ".locks"
# Folders beside the artifacts of a model: finished build stages, which later builds reuse; cost curves (see
# `pipeline.engine.cost_curve`); first rows (see `pipeline.engine.first_rows`).
STAGES, COSTS, FIRST_ROWS = ".stages", ".costs", ".first_rows"
# Files beside them: plans of builds (see `pipeline.engine.plan`).
PLAN_SUFFIX = ".plan.json"


class FileEntry(Frozen):
    """A file of an artifact. size: in bytes."""

    path: str = Field(description="Relative to the artifact, with forward slashes.")
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(Frozen):
    """Description of an artifact and of its files."""

    model: str
    profile: str
    fingerprint: Fingerprint
    fingerprint_digest: str
    lookahead_origin: str | None = Field(None, description="Where W, N and G of the fingerprint come from.")
    files: tuple[FileEntry, ...]
    command: tuple[str, ...] = Field(description="The command line that built it.")
    created: str = Field(description="Time of the build, in UTC.")
    commit: str | None = Field(description="Commit of the checkout that built it, if any.")

    @property
    def num_bytes(self) -> int:
        return sum(entry.size for entry in self.files)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A checked engine on disk."""

    folder: Path
    manifest: Manifest
    resolved: ResolvedConfig

    @property
    def engine_dir(self) -> Path:
        return self.folder / ENGINE

    @property
    def tokenizer_dir(self) -> Path:
        return self.folder / TOKENIZER


def artifact_dir(folders: Folders, model: str, profile: str) -> Path:
    """Folder of the artifact of a model under a profile, built or not."""
    return folders.engines / model / profile


def artifacts_of(folders: Folders, model: str) -> list[Path]:
    """Folders of all artifacts of a model, those of `shared_engines` last."""
    return [path.parent for root in folders.engine_folders for path in sorted((root / model).glob(f"*/{MANIFEST}"))]


def load_artifact(
    folder: Path, cache_dir: Path, *, resolved: ResolvedConfig | None = None, check_runnable: bool = True
) -> Artifact:
    """Read and check an artifact. Raises BuildError with the reason and the command that fixes it.

    Every file's size and SHA-256 are compared. The hash of a large file is cached in cache_dir until the file changes
    (see `hashing`). resolved: the settings of a model repository, used instead of the artifact's. check_runnable: also
    compare its libraries and device with those of this machine.
    """
    remedy = f"Build it with `lookahead engine --model {folder.parent.name} --profile {folder.name}`."
    if not (folder / MANIFEST).is_file():
        raise BuildError(f"There is no engine in {folder}. {remedy}")
    manifest = _read_manifest(folder, remedy)
    again = f"Build it again with `lookahead engine --model {manifest.model} --profile {manifest.profile} --force`."
    _check_files(folder, manifest, cache_dir, again)
    try:
        resolved = resolved or load_resolved(folder / RESOLVED)
    except ConfigError as error:
        raise BuildError(f"{folder / RESOLVED} was written by another version of this program. {again}") from error
    if check_runnable:
        _check_runnable(folder, manifest.fingerprint, resolved, again)
    return Artifact(folder, manifest, resolved)


def write_artifact(
    folder: Path, resolved: ResolvedConfig, fingerprint: Fingerprint, fill: Callable[[Path], None], cache_dir: Path
) -> Artifact:
    """Call `fill` to write engine/ and tokenizer/ into a temporary folder, add the manifest, and rename it to
    `folder`. Folders of later stages stay, because a server that restarts needs its repository."""
    with atomic_folder(folder) as partial:
        fill(partial)
        write_atomically(partial / RESOLVED, dump_resolved(resolved))
        _describe(partial, resolved, fingerprint, cache_dir)
        for later in folder.glob("*"):
            if later.is_dir() and not (partial / later.name).exists():
                # Not moved: if the last step fails, as on a full disk, the server still needs it.
                shutil.copytree(later, partial / later.name, symlinks=True, copy_function=link_or_copy)
    return load_artifact(folder, cache_dir)


def refresh_resolved(artifact: Artifact, resolved: ResolvedConfig, cache_dir: Path) -> Artifact:
    """Replace the settings of an artifact by ones that differ only in keys that the engine does not depend on (server,
    drafting). Other files are untouched, so a server can use the folder meanwhile."""
    text = dump_resolved(resolved)
    content = text.encode()
    entry = FileEntry(path=RESOLVED, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    files = [entry if other.path == RESOLVED else other for other in artifact.manifest.files]
    described = _manifest(resolved, artifact.manifest.fingerprint, files)
    settings, manifest = artifact.folder / RESOLVED, artifact.folder / MANIFEST
    # Both are written before one is renamed: on a full disk the artifact stays as it is.
    with written_beside(settings, text) as new_settings, written_beside(manifest, described) as new_manifest:
        new_settings.chmod(0o644)
        new_settings.replace(settings)
        new_manifest.replace(manifest)
    return load_artifact(artifact.folder, cache_dir)


def share_engine(source: Artifact, share_file: Callable[[Path, Path], None], folder: Path) -> None:
    """Share engine/ and tokenizer/ of another artifact with `folder`. share_file: as for `share_folder`."""
    for name in (ENGINE, TOKENIZER):
        share_folder(source.folder / name, folder / name, share_file)


def share_measurements(source: Path, target: Path) -> None:
    """Copy cost curves and first rows of a model's folder to another one that has none."""
    for name in (COSTS, FIRST_ROWS):
        if not (target / name).exists():
            share_folder(source / name, target / name, shutil.copyfile)


def share_folder(source: Path, target: Path, share_file: Callable[[Path, Path], object] = link_or_copy) -> None:
    """Share the files of a folder with another one. Subfolders are created, because those of `source` may be read-only.
    share_file: called with the paths of a file and of its link or copy."""
    for path in source.rglob("*"):
        if path.is_file():
            link = target / path.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            share_file(path, link)


@contextmanager
def build_lock(folders: Folders, model: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock that permits one build per model at a time. on_wait: called if another build holds it."""
    locks = folders.engines / LOCKS
    make_folder(locks)
    # Opened for reading, so that a finished engine in a read-only folder can be used.
    with open(os.open(locks / model, os.O_RDONLY | os.O_CREAT, 0o644)) as file:
        wait_for_lock(file, lambda: on_wait(f"another build of {model} is running; waiting for it"))
        folder = folders.engines / model
        for leftover in folder.glob(f"{PARTIAL}*"):  # of a killed build, since this process holds the lock
            shutil.rmtree(leftover)
        try:
            yield
        finally:
            # The folder is empty only after a failed first build.
            with suppress(OSError):
                folder.rmdir()


def _read_manifest(folder: Path, remedy: str) -> Manifest:
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BuildError(
            f"{path} cannot be read or was written by another version of this program. {remedy}"
        ) from error
    if manifest.fingerprint_digest != manifest.fingerprint.digest:
        raise BuildError(f"{path} was changed: its fingerprint does not match its digest. {remedy}")
    return manifest


def _check_files(folder: Path, manifest: Manifest, cache_dir: Path, remedy: str) -> None:
    expected = {entry.path: entry for entry in manifest.files}
    present = {path.relative_to(folder).as_posix() for path in _files(folder)}
    if missing := sorted(name for name in expected if not (folder / name).is_file()):
        raise BuildError(f"The engine in {folder} lacks {', '.join(missing)}. {remedy}")
    if unknown := sorted(present - expected.keys()):
        raise BuildError(
            f"The engine in {folder} holds {', '.join(unknown)}, which its manifest does not list. {remedy}"
        )
    for name, entry in expected.items():
        path = folder / name
        if path.stat().st_size != entry.size:
            raise BuildError(f"{path} has {path.stat().st_size} bytes; it was built with {entry.size}. {remedy}")
        if cached_sha256(path, cache_dir) != entry.sha256:
            raise BuildError(f"{path} was changed after the build: its SHA-256 differs from the manifest. {remedy}")


def _check_runnable(folder: Path, fingerprint: Fingerprint, resolved: ResolvedConfig, remedy: str) -> None:
    libraries, device = backend_of(fingerprint.backend).runtime(resolved)
    here = fingerprint.model_copy(
        update={"format": Fingerprint.model_fields["format"].default, "libraries": libraries, "device": device}
    )
    if reasons := list(differences(fingerprint.entries(), here.entries())):
        raise BuildError(f"The engine in {folder} was built for another environment: {'; '.join(reasons)}. {remedy}")


def _describe(folder: Path, resolved: ResolvedConfig, fingerprint: Fingerprint, cache_dir: Path) -> None:
    entries = []
    for path in sorted(_files(folder)):
        # A needless chmod would invalidate the cached hash.
        if not path.is_symlink() and path.stat().st_mode & 0o777 != 0o644:
            path.chmod(0o644)
        name = path.relative_to(folder).as_posix()
        entries.append(FileEntry(path=name, size=path.stat().st_size, sha256=cached_sha256(path, cache_dir)))
    write_atomically(folder / MANIFEST, _manifest(resolved, fingerprint, entries))


def _manifest(resolved: ResolvedConfig, fingerprint: Fingerprint, files: Sequence[FileEntry]) -> str:
    """Text of the manifest of an artifact that this command writes."""
    manifest = Manifest(
        model=resolved.model.name,
        profile=resolved.profile.name,
        fingerprint=fingerprint,
        fingerprint_digest=fingerprint.digest,
        lookahead_origin=resolved.lookahead.origin,
        files=tuple(files),
        command=("lookahead", *sys.argv[1:]),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=commit(),
    )
    return manifest.model_dump_json(indent=2) + "\n"


def _files(folder: Path) -> Iterator[Path]:
    for name in (ENGINE, TOKENIZER):
        yield from (path for path in (folder / name).rglob("*") if path.is_symlink() or not path.is_dir())
    if (folder / RESOLVED).is_file():
        yield folder / RESOLVED
