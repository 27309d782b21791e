"""Tells in the log which model a line is about, where a server has several."""

from __future__ import annotations

import logging
from contextvars import ContextVar

LOGGED_MODEL: ContextVar[str] = ContextVar("LOGGED_MODEL", default="")  # in tasks and requests of one model


class ModelNames(logging.Filter):
    """For a handler: puts the model's name before a line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if name := LOGGED_MODEL.get():
            record.msg, record.args = f"{name}: {record.getMessage()}", None
        return True
