"""Discovery, through which the processes of a fleet find each other. Dynamo reads the environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pipeline.config.schema import ServerConfig
from pipeline.errors import ServerError
from pipeline.server.watch import connect, is_https

# Folder that processes, or machines, share (`server.discovery: file`).
FILE_KV = "DYN_FILE_KV"
# URLs of etcd, separated by commas, and the time after which it forgets a process that is gone, in whole seconds.
ETCD_ENDPOINTS, ETCD_LEASE_TTL = "ETCD_ENDPOINTS", "ETCD_LEASE_TTL"
_DEFAULT_ENDPOINT = "http://localhost:2379"
# Dynamo's default of ETCD_LEASE_TTL. Entries in a shared folder expire after the same time.
LEASE_S = 10.0
# Time for the front end to learn that a worker is not listed any more.
_NEWS_S = 2.0
# Time limit of a request to etcd.
ANSWER_S = 3.0


def has_other_machines(server: ServerConfig, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the fleet can have workers on other machines."""
    return server.discovery != "file" or FILE_KV in environment


def listed_s(server: ServerConfig, environment: Mapping[str, str] = os.environ) -> float:
    """Time for which a worker whose machine is gone may be listed, in seconds. Zero on one machine, where guards remove
    the entries."""
    if not has_other_machines(server, environment):
        return 0.0
    asked = environment.get(ETCD_LEASE_TTL, "") if server.discovery == "etcd" else ""
    # Dynamo uses its default for anything but digits; int() also reads "6_0" and " 60".
    return (float(asked) if asked.isascii() and asked.isdecimal() else LEASE_S) + _NEWS_S


def etcd_urls(environment: Mapping[str, str] = os.environ) -> list[str]:
    """URLs of the members of etcd."""
    found = (part.strip().rstrip("/") for part in environment.get(ETCD_ENDPOINTS, _DEFAULT_ENDPOINT).split(","))
    return [part if "://" in part else f"http://{part}" for part in found if part]


def needed_urls(server: ServerConfig) -> list[str]:
    """URLs, one of which must answer before a process of the fleet can start; none without etcd."""
    return [f"{url}/health" for url in etcd_urls()] if server.discovery == "etcd" else []


def check_etcd(environment: Mapping[str, str] = os.environ) -> str:
    """Text with the URLs of etcd. Raises ServerError if no member answers; Dynamo itself would try for minutes."""
    urls = etcd_urls(environment)
    reasons = [f"{url}: {reason}" for url in urls if (reason := _obstacle(url))]
    if not urls or len(reasons) == len(urls):
        value = repr(environment[ETCD_ENDPOINTS]) if ETCD_ENDPOINTS in environment else "not set"
        raise ServerError(
            f"server.discovery is etcd, and no etcd answers ({'; '.join(reasons) or 'no URL'}). Start etcd, or set "
            f"{ETCD_ENDPOINTS} to its URL; {ETCD_ENDPOINTS} is {value}."
        )
    return f"etcd answers at {', '.join(urls)}"


def _obstacle(url: str) -> str:
    """Why a member of etcd does not answer; empty if it does."""
    import httpx  # `lookahead stop` does not need it

    try:
        if is_https(url):  # it may require a certificate, which Dynamo has
            connect(url, ANSWER_S)
            return ""
        answer = httpx.get(f"{url}/health", timeout=ANSWER_S, trust_env=False)
    except (httpx.TimeoutException, TimeoutError):
        return f"no answer in {ANSWER_S:.0f} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return str(error)
    if '"health"' not in answer.text:
        return "another program answers there"
    return "" if answer.status_code == 200 else "it is not healthy; has it lost most of its members?"
