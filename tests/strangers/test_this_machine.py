"""On this machine too, and with the packages that are installed here, the server starts, answers and stops."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.strangers.test_strangers import GANDER, PATIENCE, VISIT


def test_the_server_starts_answers_and_stops_on_this_machine() -> None:
    command = [sys.executable, VISIT, GANDER, "serve", "gosling"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    found = json.loads(ran.stdout)
    assert found["text"], found["said"]
    assert found["status"] == 0, found["said"]
    assert found["is_port_free"], found["said"]
