"""The socket that the server listens on. Quick to import."""

from __future__ import annotations

import socket

from server.config import ServerSettings

BACKLOG = 2048  # connections that may wait to be accepted


def listen(settings: ServerSettings) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def send_at_once(listener: socket.socket) -> None:
    """What it accepts inherits this, which asyncio sets only on sockets that it made itself. Without it a reply's last
    piece waits until the client has acknowledged the one before, 40 ms where clients delay that."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
