"""How the port is opened."""

from __future__ import annotations

import socket

from server.config import ServerSettings
from server.process.listening import listen, send_at_once


def test_what_is_sent_leaves_at_once() -> None:
    with listen(ServerSettings(port=0)) as listener:
        send_at_once(listener)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
