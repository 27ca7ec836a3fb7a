"""The OpenAPI page lists the paths that the gateway serves."""

from __future__ import annotations

import asyncio
import json
from importlib.resources import files

from starlette.routing import Route

from pipeline.gateway.deployment import Deployments
from pipeline.gateway.http_app import HttpGateway
from pipeline.gateway.tenants import Tenants
from pipeline.gateway.upstream import request
from tests.unit.gateway.gateways import spec_of

PAGE = json.loads(files("pipeline.gateway").joinpath("openapi.json").read_text(encoding="utf-8"))
# Other names of paths that the page has.
_LEFT_OUT = ("/openapi.json", "/v1/models/{name}", "/v1/models/{owner}/{name}")


def test_the_page_has_every_path_and_method_and_no_other():
    async def gateway() -> HttpGateway:
        spec = spec_of()
        return HttpGateway(spec, Tenants((), spec.config), request, Deployments(spec.deployment))

    routes = {
        (route.path, method)
        for route in asyncio.run(gateway()).app().routes
        if isinstance(route, Route) and "{version}" not in route.path and route.path not in _LEFT_OUT
        for method in {*route.endpoint.methods} - {"HEAD"}
    }

    assert routes == {(path, method.upper()) for path, methods in PAGE["paths"].items() for method in methods}


def test_each_operation_may_refuse_a_foreign_web_page():
    """`for_this_machine` checks all paths."""
    for methods in PAGE["paths"].values():
        for operation in methods.values():
            assert operation["responses"]["403"]["$ref"].endswith("ForeignPage")
