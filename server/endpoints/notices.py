"""Tells a client what its request had that changes nothing here: in a header of the reply, and in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi.responses import Response

from server.schemas.base import WireModel
from server.schemas.tools import hosted_types

LOG = logging.getLogger("gander.notices")
NOTICE = "X-Gander-Notice"


def with_notice(response: Response, tools: Sequence[WireModel]) -> Response:
    """The response, with a header that names the tools of the request that the model is not offered, if there are
    any."""
    names = ", ".join(dict.fromkeys(hosted_types(tools)))
    if names:
        response.headers[NOTICE] = f"not offered to the model, because this server cannot run them: {names}"
        LOG.warning("Tools of a request are not offered to the model, because this server cannot run them: %s.", names)
    return response
