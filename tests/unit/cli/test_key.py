"""API keys made by the command."""

from __future__ import annotations

import hashlib
import json

import pytest
import yaml

from pipeline.cli.server import note_if_open
from pipeline.config.schema import ApiKey, ServerConfig
from tests.command_line import exit_code


@pytest.mark.parametrize("tenant", ["alice", "123", "on"])
def test_a_key_and_the_entry_that_knows_it(tenant, capsys):
    assert exit_code("key", tenant, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert exit_code("key", tenant) == 0
    shown = capsys.readouterr().out.splitlines()

    assert hashlib.sha256(made["key"].encode()).hexdigest() == made["key_sha256"]
    (entry,) = yaml.safe_load(shown[1])
    assert ApiKey(**entry).key_sha256 == hashlib.sha256(shown[0].removeprefix("key: ").encode()).hexdigest()
    assert made["key"] not in shown[0]


@pytest.mark.parametrize("name", ["", "Alice", "a/b", "../x", "a" * 65, "-x"])
def test_a_name_that_is_none_is_refused_with_a_sentence(name, capsys):
    assert exit_code("key", "--", name) == 2
    assert "is not a valid tenant name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "with_key", "is_open"),
    [("127.0.0.1", False, False), ("0.0.0.0", False, True), ("192.0.2.1", False, True), ("0.0.0.0", True, False)],
)
def test_a_server_that_is_open_to_all_is_named_as_such(host, with_key, is_open, capsys):
    keys = (ApiKey(tenant="a", key_sha256="0" * 64),) if with_key else ()

    note_if_open(ServerConfig(host=host, api_keys=keys))

    assert (f"every client that reaches {host} is served" in capsys.readouterr().err) is is_open
