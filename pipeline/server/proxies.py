"""Whether a proxy stands between us and a server: never before one of this machine, whatever the environment says."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_behind_proxy(url: str) -> bool:
    """Whether the environment's proxy, if there is one, is to be asked. url: host:port or http://host:port."""
    host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    return not (host in ("localhost", "::1") or host.startswith("127."))
