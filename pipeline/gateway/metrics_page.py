"""One page of Prometheus metrics from the pages of several servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from pipeline.gateway.refusal import Refusal
from pipeline.gateway.upstream import Upstream
from pipeline.gateway.upstream_errors import unavailable

# Label of each sample: the number of its server, counted from 1.
REPLICA = "replica"


async def metrics_page(servers: Sequence[str], ask: Callable[[Upstream], Awaitable[tuple[int, bytes]]]) -> bytes:
    """The page of one server as it is, or the merged pages of several. servers: host:port of each. ask: returns status
    and body of a server's page. Servers without a page are left out. Raises Refusal (503) if none has one."""
    pages: dict[int, bytes] = {}
    for number, server in enumerate(servers, 1):
        with suppress(Refusal):  # the server restarts
            status, page = await ask(Upstream(server, {}))
            if status == 200:
                pages[number] = page
    if not pages:
        raise unavailable()
    if len(servers) == 1:
        return pages[1]
    return merged({number: page.decode() for number, page in pages.items()}).encode()


def merged(pages: Mapping[int, str]) -> str:
    """Merge pages in Prometheus' text format, by number of their server. Each metric keeps the first description, and
    each sample gets the label `REPLICA`."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, page in pages.items():
        described: list[str] = []
        samples: list[str] = []
        for line in page.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                name = line.split(" ", 3)[2]
                described, samples = families.setdefault(name, ([], []))
                kind = line[: len("# HELP ")]
                if not any(known.startswith(kind) for known in described):
                    described.append(line)
            elif line and not line.startswith("#"):
                samples.append(_labelled(line, number))
    return "".join(f"{line}\n" for described, samples in families.values() for line in (*described, *samples))


def _labelled(sample: str, number: int) -> str:
    """A line such as `name{label="a"} 1` with one more label."""
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{{REPLICA}="{number}"{"" if rest.startswith("}") else ","}{rest}'
    name, _, rest = sample.partition(" ")
    return f'{name}{{{REPLICA}="{number}"}} {rest}'
