"""Ids of requests that are unique although clients choose them. The gateway makes them, so that it can stop a single
request; a client stops all of its requests with the id that it chose."""

from __future__ import annotations

import re
import secrets

_UNIQUE = re.compile(r"#[0-9a-f]{16}$")


def unique_id(chosen: str) -> str:
    """An id that no other request has. chosen: by the client; may be empty."""
    return f"{chosen}#{secrets.token_hex(8)}"


def chosen_id(request_id: str) -> str:
    """What the client chose as the id of a request."""
    return _UNIQUE.sub("", request_id)
