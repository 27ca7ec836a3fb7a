"""The OpenAPI page lists the paths that the gateway serves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

from starlette.routing import Route

from pipeline.gateway.bodies import write_json
from pipeline.gateway.openapi_page import PAGE
from tests.unit.gateway.gateways import behind, http_gateway, spec_of

# Other names of paths that the page has.
_LEFT_OUT = ("/openapi.json", "/v1/models/{name}", "/v1/models/{owner}/{name}")


async def test_the_page_has_every_path_and_method_and_no_other():
    routes = {
        (route.path, method)
        for route in http_gateway(behind(), spec_of()).app().routes
        if isinstance(route, Route) and "{version}" not in route.path and route.path not in _LEFT_OUT
        for method in {*route.endpoint.methods} - {"HEAD"}
    }

    assert routes == {(path, method.upper()) for path, method, _ in operations()}


def test_each_operation_may_refuse_a_foreign_web_page():
    """`for_this_machine` checks all paths."""
    assert all("403" in operation["responses"] for _, _, operation in operations())


def test_each_reference_leads_somewhere():
    for name in re.findall(r'"#/([^"]*)"', write_json(PAGE).decode()):
        reduce(getitem, name.split("/"), PAGE)


def operations() -> Iterator[tuple[str, str, Any]]:
    """Path, method and description of each operation."""
    for path, item in PAGE["paths"].items():
        for method in item.keys() & {"get", "post"}:
            yield path, method, item[method]
