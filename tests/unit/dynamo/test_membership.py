"""What the machines of a fleet must have in common, and the workers that discovery lists."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config.schema import ServerConfig
from pipeline.dynamo.membership import Member, compare_with_members, listed_members, membership_of
from pipeline.dynamo.spec import DYNAMO_NAMESPACE, HAS_FRONT_END, MEMBERSHIP, Membership
from pipeline.engine.artifact import Artifact
from pipeline.engine.backend import backend_of
from pipeline.errors import ServerError
from pipeline.server.discovery import ETCD_ENDPOINTS, FILE_KV
from tests.http_server import Handler, serving
from tests.trt_configs import trt_config
from tests.unit.dynamo.requests import FLEET
from tests.unit.engine.builds import tiny

CLOSED = "http://127.0.0.1:1"
OWN = Membership(fleet="lookahead", engine={"dtype": "float32", "engine.quantization": "int8", "torch": "2.13"})
OTHER = Membership(fleet="lookahead", engine={"dtype": "float32", "engine.quantization": "none", "torch": "2.13"})


def artifact_of(resolved: Any, checkpoint: str = "0" * 64) -> Artifact:
    fingerprint = backend_of(resolved.backend).fingerprint(resolved, checkpoint)
    return cast(Artifact, SimpleNamespace(resolved=resolved, manifest=SimpleNamespace(fingerprint=fingerprint)))


def card_of(membership: Any, **published: bool) -> bytes:
    """An entry of discovery, as Dynamo 1.4.2 writes it."""
    card = {
        "display_name": "m",
        "model_info": {"hf_config_json": {"path": "http://10.0.0.7:9/v1/metadata/config.json"}},
        "runtime_config": {"context_length": 9, "runtime_data": {MEMBERSHIP: membership, **published}},
    }
    return json.dumps({"type": "Model", "namespace": "n", "card_json": card}).encode()


class Etcd(Handler):
    """Lists two cards, one of them from another program, for the range of all cards."""

    def do_POST(self) -> None:
        asked = {name: base64.b64decode(value) for name, value in json.loads(self.read()).items()}
        if (self.path, asked) != ("/v3/kv/range", {"key": b"v1/mdc/", "range_end": b"v1/mdc0"}):
            self.answer(status=400)
            return
        cards = (card_of(OWN.model_dump(), **{HAS_FRONT_END: True}), b'{"card_json": {"runtime_config": {}}}')
        self.answer(json.dumps({"kvs": [{"value": base64.b64encode(card).decode()} for card in cards]}).encode())


class Denying(Handler):
    def do_POST(self) -> None:
        self.answer(b'{"error":"etcdserver: user name is empty"}', 400)


def server(discovery: str) -> ServerConfig:
    return tiny(f"server.discovery={discovery}").profile.server


@pytest.fixture
def card(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_a_membership_depends_on_what_decides_the_tokens(card: Path) -> None:
    def namespace_of(*overrides: str, **where: str) -> str:
        return membership_of(artifact_of(tiny(*overrides), **where), card, {}).namespace

    int8, bfloat16 = "engine.quantization=int8", "model.dtype=bfloat16"
    first = namespace_of()
    others = [namespace_of(each) for each in (int8, bfloat16, "engine.max_seq_len=512")]
    others.append(namespace_of(checkpoint="1" * 64))
    (card / "chat_template.jinja").write_text("x")
    others.append(namespace_of())
    (card / "chat_template.jinja").unlink()

    assert len({first, *others}) == 6
    same = ("engine.max_batch_size=2", "drafting.max_draft_tokens=3", "drafting.strategy=none", "server.replicas=2")
    assert {namespace_of(*same), namespace_of("server.discovery=etcd")} == {first}


def test_the_fleet_is_that_of_the_environment(card: Path) -> None:
    artifact = artifact_of(tiny())
    fleets = [membership_of(artifact, card, {DYNAMO_NAMESPACE: name}).fleet for name in ("team", "")]

    assert [*fleets, membership_of(artifact, card, {}).fleet] == ["team", "lookahead", "lookahead"]


def test_only_passes_whose_bits_depend_on_the_processor_name_it() -> None:
    def names_processor(*overrides: str) -> bool:
        resolved = tiny(*overrides)
        backend = backend_of("torch")
        return "processor" in backend.token_entries(backend.fingerprint(resolved, "0"))

    assert not names_processor()
    assert not names_processor("engine.quantization=int8")
    assert names_processor("model.dtype=bfloat16")


def test_engines_of_tensorrt_llm_agree_only_if_they_were_built_alike() -> None:
    backend = backend_of("tensorrt_llm")
    one, other = (
        backend.token_entries(backend.fingerprint(trt_config("llama2-13b", "latency", *overrides), "abc"))
        for overrides in ((), ("engine.max_batch_size=2",))
    )

    assert one != other
    assert one["checkpoint"] == "abc"


def test_workers_in_a_shared_folder_are_listed_while_they_renew_their_entries(tmp_path: Path) -> None:
    cards = tmp_path / "v1" / "mdc"
    cards.mkdir(parents=True)
    contents = {
        "alive": card_of(OWN.model_dump()),
        "dead": card_of(OTHER.model_dump()),
        "incomplete": card_of(OTHER.model_dump())[:-9],
        "foreign": card_of("something else"),
    }
    for name, content in contents.items():
        (cards / name).write_bytes(content)
    long_ago = time.time() - 20
    os.utime(cards / "dead", (long_ago, long_ago))

    assert listed_members(server("file"), {FILE_KV: str(tmp_path)}) == [Member("10.0.0.7", OWN)]
    assert listed_members(server("file"), {FILE_KV: str(tmp_path / "absent")}) == []
    assert listed_members(server("file"), {}) == []


def test_workers_in_etcd_are_listed_by_the_first_member_that_answers() -> None:
    with serving(Etcd) as port, serving(Denying) as denying:
        urls = f"https://127.0.0.1:{port},{CLOSED},http://[1,http://\x01:1,http://127.0.0.1:{denying},http://127.0.0.1:{port}"
        assert listed_members(server("etcd"), {ETCD_ENDPOINTS: urls}) == [Member("10.0.0.7", OWN, has_front_end=True)]
        with pytest.raises(ServerError, match=rf"{denying}: etcdserver: user name is empty; {CLOSED}: "):
            listed_members(server("etcd"), {ETCD_ENDPOINTS: f"http://127.0.0.1:{denying},{CLOSED}"})
    assert listed_members(server("kubernetes"), {}) == []


@pytest.mark.parametrize(("status", "body"), [(200, b"[]"), (404, b'["no"]'), (500, b"{}"), (404, b'{"error":{}}')])
def test_another_program_at_the_address_of_etcd_is_named(status: int, body: bytes) -> None:
    class Other(Handler):
        def do_POST(self) -> None:
            self.read()
            self.answer(body, status)

    with serving(Other) as port, pytest.raises(ServerError, match=f"{port}: another program .* with status {status}"):
        listed_members(server("etcd"), {ETCD_ENDPOINTS: f"http://127.0.0.1:{port}"})


def compared(members: list[Member], monkeypatch: pytest.MonkeyPatch, join: bool = True, **options: Any) -> list[str]:
    """Notes of a comparison of OWN with these members."""
    monkeypatch.setattr("pipeline.dynamo.membership.listed_members", lambda server: members)
    notes: list[str] = []
    compare_with_members(server("etcd"), OWN, join, notes.append, **options)
    return notes


def test_a_machine_that_may_give_other_tokens_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Membership(fleet="lookahead", engine={**OTHER.engine, "dtype": "bfloat16"})
    with pytest.raises(ServerError) as refusal:
        compared([Member("10.0.0.8", far), Member("10.0.0.7", OTHER)], monkeypatch)

    assert str(refusal.value) == (
        "This machine may give other tokens than the fleet 'lookahead', whose requests it would continue: "
        "engine.quantization int8 instead of none at 10.0.0.7. Serve the same model with the same settings as "
        "10.0.0.7, or set DYN_NAMESPACE to another name here, for another fleet."
    )


@pytest.mark.parametrize(
    "members",
    [
        [],
        [Member("10.0.0.7", OWN)],
        [Member("10.0.0.7", OTHER), Member("10.0.0.8", OWN)],
        [Member("10.0.0.7", OTHER, True), Member("10.0.0.7", OWN, True)],  # a switch has begun
        [Member("10.0.0.7", OTHER.model_copy(update={"fleet": "team"}))],
    ],
)
def test_a_machine_joins_an_empty_fleet_and_one_with_its_engine(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared(members, monkeypatch) == []


def test_a_machine_does_not_join_one_that_a_switch_has_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Member("10.0.0.8", OWN), Member("10.0.0.7", OTHER, has_front_end=True)]
    with pytest.raises(ServerError, match=r"at 10.0.0.7. Serve the same model"):
        compared(members, monkeypatch)
    with pytest.raises(ServerError, match=r"at 10.0.0.7. Switch 10.0.0.7 first; `lookahead switch` there prints"):
        compared(members, monkeypatch, has_joined=True)


def test_a_machine_with_another_commit_is_told_to_install_the_same(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = membership_of(artifact_of(tiny()), card, {})
    other = own.model_copy(update={"engine": {**own.engine, "code": "0" * 12}})
    monkeypatch.setattr("pipeline.dynamo.membership.listed_members", lambda server: [Member("10.0.0.7", other, True)])

    assert other.namespace != own.namespace
    with pytest.raises(ServerError, match=r"code \w{12} instead of 0{12} at 10.0.0.7. Install the same commit"):
        compare_with_members(server("etcd"), own, True, print)


def test_workers_without_requests_are_reported_at_the_machine_with_the_front_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = [Member("10.0.0.9", OTHER), Member("10.0.0.7", OTHER), Member("10.0.0.5", OWN)]
    members.append(Member("10.0.0.4", OTHER, has_front_end=True))  # has requests of its own
    (note,) = compared(members, monkeypatch, join=False)

    assert note == (
        "the workers at 10.0.0.7, 10.0.0.9 get no requests from here, because they may give other tokens: "
        "engine.quantization int8 instead of none at 10.0.0.9. Run there: `lookahead stop --drain`, then "
        "`lookahead serve --join` with the model and settings of this machine"
    )
    assert compared(members, monkeypatch, join=False, remedy="`this`")[0].endswith(" at 10.0.0.9. Run there: `this`")
    assert compared(members[2:], monkeypatch, join=False) == []


def test_an_etcd_that_does_not_list_the_workers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    with serving(Denying) as port:
        monkeypatch.setenv(ETCD_ENDPOINTS, f"http://127.0.0.1:{port}")
        compare_with_members(server("etcd"), OWN, False, notes.append)
        assert not notes
        compare_with_members(server("etcd"), OWN, True, notes.append)

    assert notes == [
        "the engine is not compared with the fleet's (etcd does not list the workers: "
        f"http://127.0.0.1:{port}: etcdserver: user name is empty); if they differ, this machine gets no requests"
    ]


def test_a_membership_survives_its_publication() -> None:
    published = json.loads(json.dumps(FLEET.model_dump() | {"engine": {"a": True, "b": 1, "c": "x"}}))
    assert Membership.model_validate(published).engine == {"a": True, "b": 1, "c": "x"}
    assert Membership.model_validate(published).namespace == Membership(**published).namespace
