"""The command `key`, which makes API keys for clients."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

import typer

from pipeline.cli import output
from pipeline.cli.options import Json
from pipeline.errors import RequestError


def key(
    tenant: Annotated[str, typer.Argument(help="Tenant: name of the client that gets the key.")],
    as_json: Json = False,
) -> None:
    """Make an API key and its entry for the profile's server.api_keys. The key itself is not stored."""
    from pydantic import ValidationError

    from pipeline.config.schema import ApiKey

    made = f"la-{secrets.token_urlsafe(32)}"
    try:
        entry = ApiKey(tenant=tenant, key_sha256=hashlib.sha256(made.encode()).hexdigest())
    except ValidationError as error:
        raise RequestError(
            f"{tenant!r} is not a valid tenant name: use up to 64 small letters, digits, dots, dashes and "
            "underscores, and begin with a letter or digit."
        ) from error
    if as_json:
        output.print_json({"key": made, "tenant": entry.tenant, "key_sha256": entry.key_sha256})
        return
    # Quoted, because YAML reads names such as 123 and on as other types.
    output.say(f'key: {made}\n- {{tenant: "{entry.tenant}", key_sha256: "{entry.key_sha256}"}}')
