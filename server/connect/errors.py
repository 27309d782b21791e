"""Why a tool cannot be pointed at a server."""

from decoding.errors import GanderError


class ConnectError(GanderError):
    """The server does not answer, or a tool's file cannot be written; the message says what to do."""
