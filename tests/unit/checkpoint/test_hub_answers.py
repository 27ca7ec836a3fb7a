"""Responses of the hub's client, and one message for each of its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoint.fetch import fetch, known_content_hash
from pipeline.config.schema import HubCheckpoint
from pipeline.errors import CheckpointError
from tests.unit.checkpoint.sources import DYNAMIC_ROPE, fault, hub_source, model_of


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the hub: set "answer" to a folder or to an exception."""
    import huggingface_hub

    state: dict[str, Any] = {"asked": []}

    def snapshot_download(repo_id: str, **options: Any) -> str:
        state["asked"].append((repo_id, options))
        if isinstance(state["answer"], Exception):
            raise state["answer"]
        return str(state["answer"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return state


def test_hub_snapshot(hub: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    commit = "0123456789" * 4
    hub["answer"] = folder.rename(tmp_path / commit)
    found = fetch(model_of(hub_source()), tmp_path)
    pinned = model_of(HubCheckpoint(repo_id="someone/something", revision=commit))
    assert found.content_hash == known_content_hash(pinned)
    assert known_content_hash(model_of(hub_source())) is None, "a branch may move"
    patterns = hub["asked"][-1][1]
    assert "*.safetensors" in patterns["allow_patterns"]
    assert "*/*" in patterns["ignore_patterns"]
    (hub["answer"] / "model.safetensors").unlink()
    assert "has no weights" in fault(hub_source(), tmp_path)


def test_a_refused_config_is_reported_before_the_weights_are_fetched(
    hub: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    hub["answer"] = folder

    def refuse(folder: Path) -> None:
        raise CheckpointError(f"refused: {(folder / 'config.json').is_file()}")

    with pytest.raises(CheckpointError, match="refused: True"):
        fetch(model_of(hub_source()), tmp_path, refuse)
    DYNAMIC_ROPE(folder)
    assert "rotary embeddings of type 'dynamic'" in fault(hub_source(), tmp_path)
    assert [options["allow_patterns"] for _, options in hub["asked"]] == [["config.json"]] * 2


def hub_errors() -> list[tuple[str, str]]:
    return [
        ("GatedRepoError", "is gated. Ask for access"),
        ("RepositoryNotFoundError", "is not on the hub, or is private"),
        ("RevisionNotFoundError", "has no revision 'main'"),
        ("LocalEntryNotFoundError", "is not in the local cache, and HF_HUB_OFFLINE is set"),
        ("HfHubHTTPError", "the hub denies access (HTTP 403)"),
    ]


@pytest.mark.parametrize(("name", "expected"), hub_errors())
def test_hub_errors_are_one_sentence_without_a_host(
    name: str, expected: str, hub: dict[str, Any], tmp_path: Path
) -> None:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(403, request=httpx.Request("GET", "https://host.invalid/x"))
    kind = getattr(errors, name)
    arguments = {} if name == "LocalEntryNotFoundError" else {"response": response}
    hub["answer"] = kind("403 for https://host.invalid/x", **arguments)
    text = fault(hub_source(), tmp_path)
    assert expected in text
    assert "someone/something" in text
    assert "://" not in text


def test_no_network_is_one_sentence(hub: dict[str, Any], tmp_path: Path) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    transport = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    hub["answer"] = transport("[Errno -2] Name or service not known")
    assert "Check the network and run the command again" in fault(hub_source(), tmp_path)
