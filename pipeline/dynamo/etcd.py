"""Reads entries of etcd over its HTTP interface, with the credentials that Dynamo takes from the environment."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ServerError
from pipeline.server.discovery import ANSWER_S, etcd_urls

if TYPE_CHECKING:
    import httpx

# User and password, else the texts (not the paths) of three PEM files. Dynamo uses one or the other.
_USER = ("ETCD_AUTH_USERNAME", "ETCD_AUTH_PASSWORD")
_CERTIFICATES = ("ETCD_AUTH_CA", "ETCD_AUTH_CLIENT_CERT", "ETCD_AUTH_CLIENT_KEY")


def values_below(prefix: str, environment: Mapping[str, str] = os.environ) -> list[bytes]:
    """Values of all keys that begin with `prefix`, from the first member of etcd that lists them. Raises ServerError
    with the reasons if none does."""
    reasons = []
    for url in etcd_urls(environment):
        found = _values_at(url, prefix, environment)
        if not isinstance(found, str):
            return found
        reasons.append(f"{url}: {found}")
    raise ServerError(f"etcd does not list the workers: {'; '.join(reasons)}")


def _values_at(url: str, prefix: str, environment: Mapping[str, str]) -> list[bytes] | str:
    """The values that one member lists, or the reason why it does not."""
    import httpx  # `lookahead stop` does not need it

    try:
        context = _context(environment)
        with httpx.Client(base_url=url, verify=context, timeout=ANSWER_S, trust_env=False) as client:
            return _values(client, prefix, environment)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError) as error:
        return str(error) or repr(error)


def _values(client: httpx.Client, prefix: str, environment: Mapping[str, str]) -> list[bytes]:
    headers = {}
    if all(environment.get(name) for name in _USER):
        name, password = (environment[name] for name in _USER)
        headers["Authorization"] = _post(client, "auth/authenticate", {"name": name, "password": password}, {})["token"]
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    keys = {name: base64.b64encode(key.encode()).decode() for name, key in (("key", prefix), ("range_end", end))}
    return [base64.b64decode(entry["value"]) for entry in _post(client, "kv/range", keys, headers).get("kvs", [])]


def _post(client: httpx.Client, path: str, body: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, Any]:
    """The response of one call. Raises ValueError with etcd's reason if it is refused, or for another program."""
    answer = client.post(f"/v3/{path}", json=body, headers=headers)
    match answer.json():
        case dict(found) if answer.status_code == 200:
            return found
        case {"error": str(reason)}:
            raise ValueError(reason)
    raise ValueError(f"another program answers there, with status {answer.status_code}")


def _context(environment: Mapping[str, str]) -> ssl.SSLContext | bool:
    """TLS settings for httpx. True: its defaults, with which Dynamo also connects to an https URL."""
    ca, certificate, key = (environment.get(name, "") for name in _CERTIFICATES)
    if all(environment.get(name) for name in _USER) or not (ca and certificate and key):
        return True
    context = ssl.create_default_context(cadata=ca)
    with tempfile.TemporaryDirectory() as folder:  # ssl takes a certificate of its own from a file only
        path = Path(folder, "client.pem")
        path.touch(mode=0o600)
        path.write_text(f"{certificate}\n{key}\n")
        context.load_cert_chain(path)
    return context
