"""How the processes of a tensor-parallel model find each other."""

from __future__ import annotations

import socket

import pytest

from pipeline.engine.torch import ranks


def test_the_port_of_the_shards_is_taken_until_they_have_found_each_other() -> None:
    """Followers take seconds to start. Meanwhile another program could listen on a port that is only chosen, or connect
    from it."""
    leader = ranks._store(2)
    with pytest.raises(OSError, match="Address already in use"):
        socket.create_server(("127.0.0.1", leader.port))

    follower = ranks._store(2, leader.port)
    leader.set("name", "value")
    assert follower.get("name") == b"value"
