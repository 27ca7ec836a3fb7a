"""Entries of a real etcd with users, and of one with TLS."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.dynamo.etcd import values_below
from pipeline.errors import ServerError
from pipeline.server.discovery import ETCD_ENDPOINTS
from tests.etcd import NO_ETCD, Etcd, etcd_path

pytestmark = [
    pytest.mark.skipif(etcd_path() is None, reason=NO_ETCD),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl, which makes the certificates"),
]
ENTRIES = {"v1/mdc/a": "one", "v1/mdc/b": "two", "v1/mdd": "other"}


def put(client: httpx.Client, url: str, headers: dict[str, str] | None = None) -> None:
    for key, value in ENTRIES.items():
        coded = {name: base64.b64encode(text.encode()).decode() for name, text in (("key", key), ("value", value))}
        assert client.post(f"{url}/v3/kv/put", json=coded, headers=headers).status_code == 200


def test_the_values_of_an_etcd_with_users_are_listed_with_the_password(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd")
    etcd.start()
    try:
        with httpx.Client(trust_env=False) as client:
            put(client, etcd.url)
            user = {"name": "root", "password": "secret"}
            steps: dict[str, dict[str, Any]] = {
                "user/add": user,
                "user/grant": {"user": "root", "role": "root"},
                "role/add": {"name": "root"},
                "enable": {},
            }
            for path in ("user/add", "role/add", "user/grant", "enable"):
                assert client.post(f"{etcd.url}/v3/auth/{path}", json=steps[path]).status_code == 200
        environment = {ETCD_ENDPOINTS: etcd.url}
        with pytest.raises(ServerError, match=rf"{etcd.url}: etcdserver: user name is empty"):
            values_below("v1/mdc/", environment)
        environment |= {"ETCD_AUTH_USERNAME": "root", "ETCD_AUTH_PASSWORD": "secret"}
        assert values_below("v1/mdc/", environment) == [b"one", b"two"]
        with pytest.raises(ServerError, match="authentication failed"):
            values_below("v1/mdc/", environment | {"ETCD_AUTH_PASSWORD": "other"})
    finally:
        etcd.kill()


def test_the_values_of_an_etcd_with_tls_are_listed_with_the_certificate(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*words.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    etcd = Etcd(tmp_path / "etcd", cert, key)
    etcd.start()
    try:
        with httpx.Client(trust_env=False, **etcd.credentials) as client:
            put(client, etcd.url)
        environment = {ETCD_ENDPOINTS: etcd.url}
        with pytest.raises(ServerError, match="CERTIFICATE_VERIFY_FAILED"):
            values_below("v1/mdc/", environment)
        environment |= {
            "ETCD_AUTH_CA": cert.read_text(),
            "ETCD_AUTH_CLIENT_CERT": cert.read_text(),
            "ETCD_AUTH_CLIENT_KEY": key.read_text(),
        }
        assert values_below("v1/mdc/", environment) == [b"one", b"two"]
    finally:
        etcd.kill()
