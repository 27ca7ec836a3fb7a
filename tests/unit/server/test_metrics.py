"""Sums of metrics over several servers."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from pipeline.errors import ServerError
from pipeline.server.metrics import read_figures
from tests.http_server import Handler, serving


def metrics(requests: int, steps: int = 0, tokens: int = 0) -> type[Handler]:
    """A server's metrics; some are there only after the first step."""
    text = f'lookahead_requests_total{{model="a"}} {requests}\nnv_other 7\n'
    if steps:
        text += f"""lookahead_acceptance_length_bucket{{le="+Inf"}} {steps}
lookahead_acceptance_length_sum {tokens}
lookahead_acceptance_length_count {steps}
"""

    class Metrics(Handler):
        def do_GET(self) -> None:
            self.answer(text.encode())

    return Metrics


def test_counts_are_added_up_and_ratios_are_those_of_the_sums() -> None:
    servers = metrics(3, 10, 20), metrics(4, 30, 40), metrics(2)
    with ExitStack() as stack:
        ports = [stack.enter_context(serving(server)) for server in servers]
        urls = [f"http://127.0.0.1:{port}/metrics" for port in ports]
        figures = read_figures(urls)
        assert figures["requests"] == 9
        assert figures["tokens per step"] == 1.5
        assert read_figures(urls[:1])["tokens per step"] == 2
    assert read_figures([])["requests"] == 0
    with pytest.raises(ServerError, match=r"/metrics cannot be read"):
        read_figures(urls)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [(b'{"error":"it starts again"}', 503, "status 503"), (b'{"error":"not here"}', 200, "Invalid labels")],
)
def test_a_page_without_metrics_is_an_error(body: bytes, status: int, reason: str) -> None:
    class NoMetrics(Handler):
        def do_GET(self) -> None:
            self.answer(body, status)

    with serving(NoMetrics) as port, pytest.raises(ServerError, match=f"/metrics cannot be read: {reason}"):
        read_figures([f"http://127.0.0.1:{port}/metrics"])
