"""Unique request ids. The gateway appends a random suffix to the id that a client chose, so that it can stop a single
request. A client stops all of its requests with the chosen id."""

from __future__ import annotations

import re
import secrets

_UNIQUE = re.compile(r"#[0-9a-f]{16}$")


def unique_id(chosen: str) -> str:
    """A new unique id. chosen: id from the client, may be empty."""
    return f"{chosen}#{secrets.token_hex(8)}"


def chosen_id(request_id: str) -> str:
    """The id that the client chose for a request."""
    return _UNIQUE.sub("", request_id)
