"""The address of a server, read from its command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.backends.tensorrt_llm.command import launch_words
from pipeline.engine.start_command import Listening, Ports
from pipeline.errors import ServerError
from pipeline.server.tritonserver_command import listening_words
from pipeline.triton_models.own_server import GrpcAddress, address_of, own_address
from tests.trt_configs import trt_context


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ([], GrpcAddress("127.0.0.1:8001")),
        (["--grpc-port=9", "--model-repository=/m"], GrpcAddress("127.0.0.1:9")),
        (["--grpc-port", "9", "--grpc-port", "7"], GrpcAddress("127.0.0.1:7")),
        (["--grpc-address=10.0.0.2", "--log-verbose=1"], GrpcAddress("10.0.0.2:8001")),
        (["--grpc-address=::", "--grpc-use-ssl=false"], GrpcAddress("[::1]:8001")),
        (
            ["--grpc-restricted-protocol=health:a=1", "--grpc-restricted-protocol=metadata,inference:b=2=3"],
            GrpcAddress("127.0.0.1:8001", {"triton-grpc-protocol-b": "2=3"}),
        ),
    ],
)
def test_options_of_tritonserver(words, address):
    assert address_of(words) == address


def test_our_servers_and_nvidias_launcher_are_found():
    listening = Listening(host="127.0.0.2", ports=Ports(1, 2, 3), key="k" * 8)
    address = GrpcAddress("127.0.0.2:2", {"triton-grpc-protocol-lookahead-key": "k" * 8})
    assert address_of(listening_words(listening)) == address
    words = launch_words(trt_context(), "tritonserver", False, Path("/m"), listening, "la0", None)
    assert address_of(words[1:]) == address


@pytest.mark.parametrize("word", ["--grpc-use-ssl", "--grpc-use-ssl=1", "--allow-grpc=false"])
def test_a_server_without_plain_grpc_is_refused_with_a_sentence(word):
    with pytest.raises(ServerError, match="with gRPC and without --grpc-use-ssl"):
        address_of([word])


def test_a_process_that_no_server_started_is_refused():
    with pytest.raises(ServerError, match="not started by tritonserver"):
        own_address()
