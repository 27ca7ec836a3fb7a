"""Whether to use a proxy for a server: never for one on this machine, whatever the environment says."""

from __future__ import annotations

from urllib.parse import urlsplit

from pipeline.errors import ServerError


def is_behind_proxy(url: str) -> bool:
    """Whether the environment's proxy, if any, applies. url: host:port or http://host:port. Raises ServerError if it is
    neither."""
    host = _host(url)
    return not (host in ("localhost", "::1") or host.startswith("127."))


def _host(url: str) -> str:
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, _ = parts.hostname, parts.port  # the port is checked when it is parsed
    except ValueError as error:
        raise ServerError(_no_address(url, str(error))) from error
    if not host or ("[" in url and ":" not in host) or any(character.isspace() for character in url):
        raise ServerError(_no_address(url, "there is no host in it"))
    return host


def _no_address(url: str, reason: str) -> str:
    return f"{url!r} is no address of a server: {reason}. Write host:port for gRPC and http://host:port for HTTP."
