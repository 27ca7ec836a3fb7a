"""Fleets, and what the machines of one have in common.

A request moves between the workers of a fleet, so their outputs must have the same tokens. Workers and front ends whose
engines agree share a namespace of Dynamo, and a front end sends requests to no other namespace. Dynamo's checksum of a
model card does not have this effect: the front end (1.4.2) logs that it differs, and sends requests to the worker.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pipeline.checkpoint.hashing import file_sha256
from pipeline.config.schema import ServerConfig
from pipeline.dynamo.etcd import values_below
from pipeline.dynamo.spec import DIGITS, DYNAMO_NAMESPACE, HAS_FRONT_END, MEMBERSHIP, NAMESPACE, Membership
from pipeline.engine.artifact import Artifact
from pipeline.engine.backend import Note, backend_of
from pipeline.engine.fingerprint import code_digest, differences, digest_of, version_of
from pipeline.errors import ServerError
from pipeline.server.discovery import FILE_KV, LEASE_S

# Entries that name this program.
_PACKAGE, _CODE = "lookahead-pipeline", "code"
# Commands for a machine without requests: those that always work.
JOIN_AGAIN = "`lookahead stop --drain`, then `lookahead serve --join` with the model and settings of this machine"
# Folder of the model cards in Dynamo's discovery.
_CARDS = "v1/mdc"


class Member(NamedTuple):
    """A worker that is listed in discovery. host: its address. has_front_end: whether a front end runs beside it."""

    host: str
    membership: Membership
    has_front_end: bool = False


def membership_of(artifact: Artifact, card: Path, environment: Mapping[str, str] = os.environ) -> Membership:
    """The membership of a worker that serves an artifact. card: folder of its model card."""
    resolved, fingerprint = artifact.resolved, artifact.manifest.fingerprint
    files = {path.name: file_sha256(path) for path in card.iterdir()}
    entries = {
        **backend_of(resolved.backend).token_entries(fingerprint),
        "checkpoint": fingerprint.checkpoint[:DIGITS],
        "model": resolved.model.name,
        # The front end chooses the template and the limit of one card for all workers.
        "tokenizer and template": digest_of(files)[:DIGITS],
        "engine.max_seq_len": resolved.profile.engine.max_seq_len,
        _PACKAGE: version_of(_PACKAGE) or "not installed",
        _CODE: code_digest()[:DIGITS],
    }
    return Membership(fleet=environment.get(DYNAMO_NAMESPACE) or NAMESPACE, engine=entries)


def compare_with_members(
    server: ServerConfig, own: Membership, join: bool, note: Note, remedy: str = JOIN_AGAIN, has_joined: bool = False
) -> None:
    """Compare the engine of this machine with those of the workers in discovery. join: raise ServerError if the machine
    would get no requests; otherwise only report workers that get none from here. remedy: commands for those.
    has_joined: whether the machine has joined already, and switches to this engine."""
    try:
        members = listed_members(server)
    except ServerError as error:
        if join:
            note(
                f"the engine is not compared with the fleet's ({error}); if they differ, this machine gets no requests"
            )
        return
    if join:
        require_agreement(own, members, has_joined)
    elif (text := disagreement(own, members, remedy)) is not None:
        note(text)


def require_agreement(own: Membership, members: Sequence[Member], has_joined: bool) -> None:
    """Raise ServerError if the fleet has front ends, and none of them sends requests to this machine. While no front
    end is listed, all workers count. has_joined: see `compare_with_members`."""
    fleet = [each for each in members if each.membership.fleet == own.fleet]
    decisive = [each for each in fleet if each.has_front_end] or fleet
    if not decisive or any(each.membership == own for each in decisive):
        return
    nearest, phrases = _nearest(own, decisive)
    host, program = nearest.host, {name: own.engine[name] for name in (_PACKAGE, _CODE) if name in own.engine}
    if nearest.membership.engine | program == own.engine:
        remedy = f"Install the same commit of this program as on {host}."
    elif has_joined:
        remedy = f"Switch {host} first; `lookahead switch` there prints the command for this machine."
    else:
        remedy = (
            f"Serve the same model with the same settings as {host}, or set {DYNAMO_NAMESPACE} to another name here, "
            "for another fleet."
        )
    raise ServerError(
        f"This machine may give other tokens than the fleet {own.fleet!r}, whose requests it would continue: {phrases} "
        f"at {host}. {remedy}"
    )


def disagreement(own: Membership, members: Sequence[Member], remedy: str) -> str | None:
    """Text about joined machines to which this machine's front end sends no requests; None if there are none. remedy:
    commands for them."""
    others = [
        each
        for each in members
        if each.membership.fleet == own.fleet and each.membership != own and not each.has_front_end
    ]
    if not others:
        return None
    nearest, phrases = _nearest(own, others)
    hosts = ", ".join(sorted({each.host for each in others}))
    return (
        f"the workers at {hosts} get no requests from here, because they may give other tokens: {phrases} at "
        f"{nearest.host}. Run there: {remedy}"
    )


def listed_members(server: ServerConfig, environment: Mapping[str, str] = os.environ) -> list[Member]:
    """The workers in discovery; none in Kubernetes, where all have one template. Raises ServerError if etcd does not
    list them."""
    if server.discovery == "etcd":
        return list(_members(values_below(f"{_CARDS}/", environment)))
    folder = environment.get(FILE_KV) if server.discovery == "file" else None
    return list(_members(_cards_in_folder(Path(folder)))) if folder else []


def _nearest(own: Membership, others: Sequence[Member]) -> tuple[Member, str]:
    """The member with the fewest differences, and the differences as text."""
    found = [(each, [*differences(own.engine, each.membership.engine)]) for each in others]
    nearest, phrases = min(found, key=lambda pair: len(pair[1]))
    return nearest, "; ".join(phrases)


def _members(cards: Iterable[bytes]) -> Iterator[Member]:
    for card in cards:
        # A card of another program has no membership, and a file may be incomplete.
        with suppress(ValueError, KeyError, TypeError):
            found: Any = json.loads(card)["card_json"]
            data, address = found["runtime_config"]["runtime_data"], found["model_info"]["hf_config_json"]["path"]
            host = urlsplit(address).hostname or "an unknown address"
            yield Member(host, Membership.model_validate(data[MEMBERSHIP]), bool(data.get(HAS_FRONT_END)))


def _cards_in_folder(folder: Path) -> Iterator[bytes]:
    """Cards that were renewed recently. Those of a dead machine stay until another process deletes them."""
    for path in (folder / _CARDS).glob("*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime <= LEASE_S:
                yield path.read_bytes()
