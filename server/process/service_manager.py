"""systemd's two protocols: the socket that it opens for a service, and what the service tells it.

Without systemd there is no socket and nobody to tell. Sources: the manual pages sd_listen_fds(3) and sd_notify(3).
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import MutableMapping

from server.engine_client.status import EngineStatus

LOG = logging.getLogger("gander.server")
FIRST_SOCKET = 3  # the file descriptor of the first socket that is passed
SAYS = {"ready": "READY=1", "draining": "STOPPING=1"}  # by the engine's state


def passed_socket(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The listening socket that was opened for this process, None where none was. The variables that tell of it are
    removed, so that no child takes them for its own. Raises OSError where there are several, or none for TCP."""
    pid, number = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "0")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or number == "0":
        return None
    if number != "1":
        raise OSError(errno.EINVAL, f"{number} sockets were passed to this service, which listens on one")
    os.set_inheritable(FIRST_SOCKET, False)
    passed = socket.socket(fileno=FIRST_SOCKET)
    if passed.family not in (socket.AF_INET, socket.AF_INET6) or passed.type != socket.SOCK_STREAM:
        raise OSError(errno.EINVAL, "the socket that was passed to this service is none for TCP")
    return passed


class ServiceManager:
    """Tells whoever started this process as a service how far it is. One that is not there any more is no error."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """The variable that names its socket is removed: workers have nothing to say there."""
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._last = ""

    def show(self, status: EngineStatus) -> None:
        """Say what has changed: the state, and a sentence that `systemctl status` shows."""
        lines = [f"STATUS={status.sentence}"]
        if status.state in SAYS:
            lines.insert(0, SAYS[status.state])
        text = "\n".join(lines)
        if self._address and text != self._last:
            self._last = text
            self._send(text)

    def _send(self, text: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(text.encode(), self._address)
            except OSError as error:
                LOG.debug("The service manager was not told %r: %s.", text, error)
