"""The files in deploy/: valid schemas, no root, and settings, ports and metrics of the program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from pipeline.config.resolution import resolve_config
from pipeline.config.schema import ResolvedConfig
from pipeline.dynamo.services import front_end_service
from pipeline.dynamo.spec import Membership
from pipeline.gateway.connections import GRACE_S
from pipeline.gateway.openapi_page import PAGE
from pipeline.gateway.spec import GatewaySpec
from pipeline.repository.names import FRONT_MODEL, STOCK_FRONT_MODEL
from pipeline.server.discovery import listed_s
from pipeline.server.guard import DRAIN_SECONDS, STOP_SECONDS
from tests.http_server import Handler, serving
from tests.patience import PATIENCE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS, OPERATED = (
    list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())) for name in ("lookahead.yaml", "dynamo.yaml")
)
# Time that the other processes took to end on a busy machine.
MARGIN_S = 25.0
PORTS = {"openai": 8080, "http": 8000, "grpc": 8001, "metrics": 8002}


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (one for one in MANIFESTS if one["kind"] == kind)
    return found


PLAIN = [one for one in (*MANIFESTS, *OPERATED) if not one["apiVersion"].startswith("nvidia.com/")]
(GRAPH,) = (one for one in OPERATED if one["kind"] == "DynamoGraphDeployment")
FRONT, WORKER = GRAPH["spec"]["components"]


@pytest.mark.parametrize("one", PLAIN, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_manifests_keep_to_the_schemas_of_kubernetes(one):
    kubernetes_validate.validate(one, "1.33", strict=True)


def test_the_graph_deployment_keeps_to_the_types_of_dynamos_operator():
    facts = json.loads((Path(__file__).parent / "dynamo_graph_deployment.json").read_text())
    Draft202012Validator(facts).validate(GRAPH)

    # What the planner of the installed Dynamo asks for.
    (dynamo,) = find_spec("dynamo.planner").submodule_search_locations  # type: ignore[union-attr, misc]
    client = Path(dynamo, "connectors", "clients", "kubernetes_api.py").read_text()
    (version,) = re.findall(r'^DYNAMO_API_VERSION = "(.*)"', client, re.M)
    assert GRAPH["apiVersion"] == f"nvidia.com/{version}"

    for component in (FRONT, WORKER):
        template = component["podTemplate"]
        labels = template["metadata"]["labels"]
        deployment = {"selector": {"matchLabels": labels}, "template": template}
        kubernetes_validate.validate(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": deployment},
            "1.33",
            strict=True,
        )


def test_the_pods_of_the_graph_deployment_run_without_rights():
    for component in (FRONT, WORKER):
        pod = component["podTemplate"]["spec"]
        mounted = {volume["name"] for volume in pod["volumes"]}
        assert pod["securityContext"]["runAsNonRoot"]
        assert component["replicas"] > 1
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert {"requests", "limits"} <= container["resources"].keys()
            assert {mount["name"] for mount in container["volumeMounts"]} <= mounted
    stop_s = WORKER["podTemplate"]["spec"]["terminationGracePeriodSeconds"]
    assert stop_s > DRAIN_SECONDS + (DRAIN_SECONDS + STOP_SECONDS) + MARGIN_S
    assert FRONT["podTemplate"]["spec"]["terminationGracePeriodSeconds"] > GRACE_S + STOP_SECONDS
    # Discovery over Kubernetes needs the operator's service account, and one Dynamo process per pod.
    assert "automountServiceAccountToken" not in WORKER["podTemplate"]["spec"]


def test_the_front_end_of_the_graph_deployment_has_the_options_of_ours():
    (main, _) = FRONT["podTemplate"]["spec"]["containers"]
    resolved = resolve_config("tiny-random-llama", "latency", ("backend=torch", "server.discovery=kubernetes"))
    service = front_end_service(resolved, Path("/run"), "127.0.0.1", 1, Membership(fleet="lookahead", engine={}))
    ours = service.argv

    assert main["command"] == ["python3", *ours[1:3]]
    assert main["args"] == ours[ours.index("1") + 1 :]
    assert [each["value"] for each in main["env"]] == [service.environment[each["name"]] for each in main["env"]]


def test_the_gateway_of_the_graph_deployment_fits_its_workers():
    (_, gateway), (main,) = (one["podTemplate"]["spec"]["containers"] for one in (FRONT, WORKER))
    (config,) = (one for one in OPERATED if one["kind"] == "ConfigMap")
    spec = GatewaySpec.model_validate_json(config["data"]["gateway.json"])
    services = {one["metadata"]["name"]: one["spec"] for one in OPERATED if one["kind"] == "Service"}
    arguments = [argument for argument in main["args"] if argument != "--join"]
    resolved = resolved_of(arguments)
    server = resolved.profile.server

    assert "--join" in main["args"]
    assert (server.discovery, server.host, server.replicas) == ("kubernetes", "0.0.0.0", 1)
    engine, scheduling = resolved.profile.engine, resolved.profile.scheduling
    assert (spec.deployment.model, spec.deployment.max_seq_len, spec.deployment.max_open_requests) == (
        resolved.model.name,
        engine.max_seq_len,
        engine.max_batch_size + scheduling.max_queue_size,
    )
    assert spec.deployment.listed_s == listed_s(server)
    assert set(spec.deployment.public_models) == {FRONT_MODEL, STOCK_FRONT_MODEL}
    assert {port["containerPort"] for port in main["ports"]} == {
        server.http_port,
        server.grpc_port,
        server.metrics_port,
    }
    assert [port["containerPort"] for port in gateway["ports"]] == [spec.openai_port]
    assert spec.deployment.openai_http == "127.0.0.1:8000"  # where the operator has the front end listen
    for address in (spec.deployment.tritons[0].http, spec.deployment.tritons[0].grpc):
        host, _, port = address.partition(":")
        assert int(port) in [each["port"] for each in services[host]["ports"]]
    for name, component in (("lookahead", FRONT), ("lookahead-worker", WORKER)):
        assert services[name]["selector"] == component["podTemplate"]["metadata"]["labels"]
        named = {
            port["name"] for each in component["podTemplate"]["spec"]["containers"] for port in each.get("ports", ())
        }
        assert {port["targetPort"] for port in services[name]["ports"]} <= named
    assert gateway["command"][-1] == f"{gateway['volumeMounts'][0]['mountPath']}/gateway.json"


def resolved_of(arguments: list[str]) -> ResolvedConfig:
    """The config of a command `lookahead serve`."""
    assert arguments[0] == "serve"
    options = list(zip(arguments[1::2], arguments[2::2], strict=True))
    assert {name for name, _ in options} == {"--model", "--set"}
    overrides = [value for name, value in options if name == "--set"]
    return resolve_config(dict(options)["--model"], "latency", ("backend=torch", "device=cpu", *overrides))


def test_pods_run_without_rights_and_answer_probes_at_our_ports():
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == PORTS
    probed = [container[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {probe["port"] for probe in probed} <= PORTS.keys()
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["server"]["healthcheck"]["test"]
    asked = [path for path in paths_without_key() if f":8080{path}'" in compose[-1]]
    assert {probe["path"] for probe in probed} | {*asked} <= paths_without_key()
    assert asked
    assert {"requests", "limits"} <= container["resources"].keys()


def paths_without_key() -> set[str]:
    """Paths that probes can request although the operator sets API keys."""
    return {path for path, methods in PAGE["paths"].items() if methods.get("get", {}).get("security") == []}


def test_requests_have_the_time_to_finish_that_the_server_gives_them():
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    server = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["server"]

    # One after the other: the OpenAI API, then all Triton servers.
    waits_s = float(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] > waits_s + DRAIN_SECONDS + (DRAIN_SECONDS + STOP_SECONDS) + MARGIN_S
    stop_s = float(server["stop_grace_period"].removesuffix("s"))
    assert stop_s > DRAIN_SECONDS + (DRAIN_SECONDS + STOP_SECONDS) + MARGIN_S


def test_what_selects_pods_selects_those_of_the_deployment():
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]

    assert manifest("Service")["spec"]["selector"] == labels
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == "lookahead"


@pytest.mark.parametrize("source", ["compose", "kubernetes"])
def test_the_server_is_started_with_settings_that_resolve(source):
    if source == "compose":
        arguments = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["server"]["command"]
    else:
        arguments = manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]

    server = resolved_of(arguments).profile.server
    assert server.host == "0.0.0.0"
    assert (server.openai_port, server.http_port, server.grpc_port, server.metrics_port) == tuple(PORTS.values())


def test_compose_mounts_files_that_are_there_and_runs_nothing_as_root():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]

    for service in services.values():
        assert int(service["user"]) > 0
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert (DEPLOY / volume.partition(":")[0]).is_file()
    assert (DEPLOY.parent / services["server"]["build"]["dockerfile"]).is_file()
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"server:{PORTS['metrics']}"]}]


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False)])
def test_the_health_check_asks_the_server(status, is_healthy):
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["server"]
    program, *arguments = service["healthcheck"]["test"][1:]
    assert program == "python"
    assert not [argument for argument in arguments if " " in argument]  # podman's Docker API splits them
    paths = []

    class Answer(Handler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.answer(status=status)

    with serving(Answer) as port:
        asked = [argument.replace(f":{PORTS['openai']}/", f":{port}/") for argument in arguments]
        check = subprocess.run([sys.executable, *asked], capture_output=True, timeout=PATIENCE_S)

    assert (check.returncode == 0) is is_healthy
    assert paths == ["/health"]


def dashboard_queries() -> list[str]:
    panels = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def metric_names(query: str) -> set[str]:
    return set(re.findall(r"\b(?:lookahead|nv)_\w+", query))


def test_each_query_of_the_dashboard_names_a_metric_and_has_its_brackets():
    for query in dashboard_queries():
        assert metric_names(query)
        assert query.count("(") == query.count(")")
        assert query.count("[") == query.count("]")


def test_the_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
