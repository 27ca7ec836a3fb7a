"""Requests to a server behind its gateway."""

from __future__ import annotations

import httpx

from pipeline.repository.names import FRONT_MODEL
from pipeline.server.server import RunningServer
from tests.integration.servers import PROMPT
from tests.patience import PATIENCE_S


def url_of(server: RunningServer, verb: str = "generate", model: str = FRONT_MODEL) -> str:
    return f"{server.state.http_url}/v2/models/{model}/{verb}"


def works(server: RunningServer, key: str | None = None) -> bool:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = {"text_input": PROMPT, "max_tokens": 4}
    return httpx.post(url_of(server), json=body, headers=headers, timeout=PATIENCE_S).status_code == 200
