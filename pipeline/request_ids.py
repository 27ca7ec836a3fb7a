"""Unique request ids. The gateway appends a random suffix to the id that a client chose, so that it can stop a single
request. A client stops all of its requests with the chosen id."""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

_UNIQUE = re.compile(r"#[0-9a-f]{16}$")


def unique_id(chosen: str) -> str:
    """A new unique id. chosen: id from the client, may be empty."""
    return f"{chosen}#{secrets.token_hex(8)}"


def chosen_id(request_id: str) -> str:
    """The id that the client chose for a request."""
    return _UNIQUE.sub("", request_id)


def is_unique(request_id: str) -> bool:
    """Whether an id was made by `unique_id`."""
    return _UNIQUE.search(request_id) is not None


class SentId(NamedTuple):
    """Id of a request on the server: prefix + chosen + suffix. prefix: of the tenant, so that none can stop the request
    of another by its id. chosen: by the client, may be empty. suffix: see `unique_id`; empty for a request that stops
    others."""

    prefix: str = ""
    chosen: str = ""
    suffix: str = ""

    @property
    def text(self) -> str:
        return f"{self.prefix}{self.chosen}{self.suffix}" if self.chosen or self.suffix else ""

    def as_chosen(self, data: bytes) -> bytes:
        """JSON from the server with the id that the client chose, or without one. Generated text never contains these
        strings, because JSON escapes quotes."""
        if self.text == self.chosen:
            return data
        data = data.replace(f'{self.suffix}"'.encode(), b'"').replace(f'"id":"{self.prefix}'.encode(), b'"id":"')
        return data if self.chosen else data.replace(b'"id":"",', b"")
