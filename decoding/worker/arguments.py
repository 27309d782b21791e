"""The arguments that the server starts a worker with.

Uses the standard library only, since it is read before anything slow is imported.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

PATIENT = "--patient"


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """inbox and outbox are addresses of sockets, running is the descriptor of the `RunningFile`, parent is the process
    id of the server. is_patient: whether others compute, which imports must not hold up."""

    inbox: str
    outbox: str
    running: int
    parent: int
    is_patient: bool


def read_arguments() -> WorkerArguments:
    parser = argparse.ArgumentParser(description="Gander's worker process; started by the server.")
    parser.add_argument("--inbox", required=True)
    parser.add_argument("--outbox", required=True)
    parser.add_argument("--running", required=True, type=int, help="descriptor of the file that names what runs")
    parser.add_argument("--parent", required=True, type=int, help="process id of the server")
    parser.add_argument(PATIENT, action="store_true", dest="is_patient", help="import only when nobody else computes")
    return WorkerArguments(**vars(parser.parse_args()))
