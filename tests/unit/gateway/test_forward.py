"""The client with which the gateway reaches the servers behind it."""

from __future__ import annotations

import asyncio

from pipeline.gateway.forward import create_client
from tests.patience import PATIENCE_S

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def test_an_answered_request_leaves_no_connection_open() -> None:
    """A Triton that is shutting down waits for idle connections before its models can save anything."""

    async def exchange() -> bytes:
        rest: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER)
            rest.set_result(await reader.read())  # returns when the client closes
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with create_client() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
            ended = await asyncio.wait_for(rest, PATIENCE_S)  # while the client goes on
        server.close()
        return ended

    assert asyncio.run(exchange()) == b""
