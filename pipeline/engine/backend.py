"""The contract of an engine backend: one object that decides settings, builds, serves and describes an engine.

To add a backend, write one object that satisfies `Backend` and register it by one line (`pipeline.config.registry`) or
by an entry point of an installed package. `pipeline.backends.in_process.InProcessBackend` is the base of backends whose
engine runs in Python. No other module depends on the kind of backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from pipeline.checkpoint.checkpoint import Checkpoint
from pipeline.config.folders import Folders
from pipeline.config.registry import BackendSettings, load_backend
from pipeline.config.schema import ResolvedConfig
from pipeline.engine.fingerprint import Fingerprint, Flag
from pipeline.engine.start_command import MakeCommand, StartCommand
from pipeline.engine.traits import TargetTraits

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

    from pipeline.engine.artifact import Artifact
    from pipeline.engine.contract import Engine

# Called with one line of text for each step of a long operation.
Note = Callable[[str], None]


class Runtime(NamedTuple):
    """Platform of an engine. libraries: versions. device: kind, e.g. cpu-x86_64 or cuda-sm90."""

    libraries: dict[str, str]
    device: str


# fail: this machine cannot build or serve the checked model. note: an optional part is absent or differs.
State = Literal["ok", "note", "fail"]


class Finding(NamedTuple):
    """Result of one check of `lookahead doctor`. part: what was checked. remedy: action that fixes it, if any."""

    part: str
    state: State
    found: str
    remedy: str = ""


class VersionTable(NamedTuple):
    """Table of versions for the documentation. rows: one text per column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Backend(BackendSettings, Protocol):
    """One way to build and serve an engine. Its module imports on every machine. A method with a body is the default of
    backends that derive from this class."""

    @property
    def name(self) -> str:
        """The value of `backend:` in a profile."""

    @property
    def in_process(self) -> bool:
        """Whether its engine runs in a Python process; others are reached through a server only."""

    # Building.

    def check(self, resolved: ResolvedConfig) -> None:
        """Raise ConfigError or BuildError for unsupported settings, before anything is downloaded or written."""
        return

    def check_config(self, resolved: ResolvedConfig, folder: Path) -> object:
        """Raise CheckpointError if this backend does not support a checkpoint's config.json. Called before the weights
        are downloaded, so the folder may hold no other file."""
        return None

    def plan(self, resolved: ResolvedConfig) -> Mapping[str, Any]:
        """Description of a build, one line of text per entry. Uses no network and no files."""
        return {}

    def full_plan(self, resolved: ResolvedConfig, folders: Folders) -> tuple[str, Mapping[str, Any]] | None:
        """Every command of a build and of a start, as text and as JSON values. None if there is only `plan`."""
        return None

    def fingerprint(self, resolved: ResolvedConfig, checkpoint_hash: str) -> Fingerprint:
        """Fingerprint of an engine built now on this machine. Raises BuildError if the backend is not installed."""

    def files_digest(self, fingerprint: Fingerprint) -> str:
        """Hash of all settings that the engine's files depend on. Profiles with the same hash share the files."""
        return fingerprint.digest

    def token_entries(self, fingerprint: Fingerprint) -> dict[str, Flag]:
        """Entries of a fingerprint, and facts of this machine, that the tokens of an output depend on. Machines of a
        fleet must agree in them."""
        return fingerprint.entries()

    def runtime(self, resolved: ResolvedConfig) -> Runtime:
        """Libraries and device that an engine would run on here. Raises BuildError if they are missing."""

    def require_resources(self, resolved: ResolvedConfig, folder: Path) -> None:
        """Raise BuildError if there is not enough disk space, memory or GPU memory."""
        return

    def write_engine(self, resolved: ResolvedConfig, checkpoint: Checkpoint, note: Note, folder: Path) -> None:
        """Write folder/engine and folder/tokenizer. `folder` exists, is empty, and is removed if this raises."""

    # In process.

    def load_engine(self, artifact: Artifact) -> Engine:
        """Load the engine of an artifact. Raises BuildError if it cannot run here, UserError if it only runs in a
        server."""

    # Serving.

    def traits(self, resolved: ResolvedConfig) -> tuple[TargetTraits, ...]:
        """The served models that verify, the one named `tensorrt_llm` first."""

    def target_configs(self, resolved: ResolvedConfig, artifact: Artifact) -> list[pb.ModelConfig]:
        """Triton configs of the models in `traits`, in that order."""

    def vocab_dir(self, artifact: Artifact) -> Path:
        """Folder whose config.json states vocab_size."""
        return artifact.engine_dir

    def check_served(self, resolved: ResolvedConfig) -> None:
        """Raise ServerError for settings that cannot be served."""
        return

    def check_start(self, resolved: ResolvedConfig, folders: Folders) -> str:
        """Return the name of the server program. Raises ServerError if this machine cannot serve. Called before an
        engine is built."""

    def make_command(
        self, resolved: ResolvedConfig, repository: Path, folders: Folders, run_dir: Path, log: Path | None, note: Note
    ) -> MakeCommand:
        """The command of a server on a rendered repository. run_dir: folder for files of the server. log: file of
        Triton's verbose log, if any. Raises ServerError if the server cannot start here."""

    def shown_commands(self, resolved: ResolvedConfig, repository: Path, folders: Folders) -> Sequence[StartCommand]:
        """The commands of a start, in order, without running them."""

    # Reports.

    def findings(self) -> Iterable[Finding]:
        """Findings of this backend for `lookahead doctor`."""
        return ()

    def version_tables(self) -> Sequence[VersionTable]:
        """Compatible versions, for `lookahead dev versions` and docs/how-to/<name>.md."""
        return ()

    def environment(self) -> Mapping[str, Any]:
        """Versions and devices for a report, as JSON values."""
        return {}

    def validation_settings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Config overrides for `lookahead validate-gpu`: for all profiles, and further ones for the first. Raises
        BuildError if the backend cannot run here."""
        return (), ()


def backend_of(name: str) -> Backend:
    """The backend of this name. Raises KeyError for an unknown name, which no schema permits."""
    backend: Backend = load_backend(name)
    return backend
