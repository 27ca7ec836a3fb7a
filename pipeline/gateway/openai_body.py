"""Requests of the OpenAI API, as the front end behind the gateway gets them."""

from __future__ import annotations

from pipeline.errors import RequestError
from pipeline.gateway.annotations import NAMESPACE, annotation
from pipeline.gateway.bodies import parse_json, write_json
from pipeline.gateway.generate_body import Checked, positive
from pipeline.gateway.openai_fields import Endpoint, for_front_end
from pipeline.gateway.refusal import Refusal
from pipeline.gateway.tenants import Tenant

_PREFIX = annotation(NAMESPACE, "")


def checked_openai(body: bytes, endpoint: Endpoint, tenant: Tenant) -> Checked:
    """The request for the front end, in the tenant's namespace. A client may name one of its own: "namespace:NAME" in
    `nvext.annotations`, or `nvext.cache_salt`. Raises Refusal (400)."""
    value = parse_json(body)
    max_tokens = positive(value.get("max_completion_tokens")) or positive(value.get("max_tokens"))
    try:
        sent = for_front_end(value, endpoint)
    except RequestError as error:
        raise Refusal(400, str(error)) from error
    extension = sent["nvext"]
    annotations: list[str] = extension["annotations"]
    # Dynamo's name for the same; it would take the place of ours where we name none.
    salt = extension.get("cache_salt")
    asked = next((text.removeprefix(_PREFIX) for text in annotations if text.startswith(_PREFIX)), None)
    if asked is None:
        asked = salt if isinstance(salt, str) else ""
    kept = [text for text in annotations if not text.startswith(_PREFIX)]
    if namespace := tenant.namespace(asked):
        kept.append(annotation(NAMESPACE, namespace))
    named = {name: value for name, value in extension.items() if name != "cache_salt"}
    return Checked(write_json(sent | {"nvext": named | {"annotations": kept}}), None, max_tokens)
