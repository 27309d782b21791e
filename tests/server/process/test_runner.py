"""How the port is opened."""

from __future__ import annotations

import socket

from server.config import ServerSettings
from server.process.runner import _listen, _send_at_once


def test_what_is_sent_leaves_at_once() -> None:
    with _listen(ServerSettings(port=0)) as listener:
        _send_at_once(listener)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
