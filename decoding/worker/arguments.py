"""What the server starts a worker with. Standard library only: it is read before anything slow is imported."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """inbox, outbox: addresses of sockets; parent: process id of the server."""

    inbox: str
    outbox: str
    parent: int


def read_arguments() -> WorkerArguments:
    parser = argparse.ArgumentParser(description="Gander's worker process; started by the server.")
    parser.add_argument("--inbox", required=True)
    parser.add_argument("--outbox", required=True)
    parser.add_argument("--parent", required=True, type=int, help="process id of the server")
    return WorkerArguments(**vars(parser.parse_args()))
