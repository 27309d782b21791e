"""Renders a client's chat template in a process of its own, which the kernel ends at limits of time and memory.

Each rendering gets a new process (some 0.1 s of processor time), so that nothing is left to the next.
`python -m server.prompts.template_process` is that process: it reads template and names, and writes text or a refusal,
as JSON.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.prompts.jinja_template import TemplateRefusal, compiled, rendered

SECONDS = 2.0  # of processor time
NUM_BYTES = 128 * 2**20  # of memory, beyond what the process begins with
MAX_CHARS = 4 * 2**20  # of the rendered text
PATIENCE = 60.0  # seconds of real time, long because the machine may be busy
_TOO_LARGE = f"takes more than {NUM_BYTES >> 20} MiB"


def rendered_apart(source: str, names: Mapping[str, Any]) -> str:
    """The prompt's text. Blocks until the process has ended. Raises TemplateRefusal."""
    asked = json.dumps({"source": source, "names": names}).encode()
    command = [sys.executable, "-m", __name__]
    try:
        child = subprocess.run(
            command, input=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise TemplateRefusal(f"did not come to an end in {PATIENCE:g} seconds") from None
    if child.returncode == -signal.SIGPROF:
        raise TemplateRefusal(f"takes more than {SECONDS:g} seconds")
    if child.returncode != 0:
        raise TemplateRefusal(_TOO_LARGE)  # the process had no memory left to report it
    said = json.loads(child.stdout)
    if "refusal" in said:
        raise TemplateRefusal(said["refusal"])
    return str(said["text"])


def _answer(asked: bytes) -> dict[str, str]:
    try:
        question = json.loads(asked)
        text = rendered(compiled(question["source"]), question["names"])
    except TemplateRefusal as refusal:
        return {"refusal": str(refusal)}
    except MemoryError:
        return {"refusal": _TOO_LARGE}
    if len(text) > MAX_CHARS:
        return {"refusal": f"writes more than {MAX_CHARS} characters"}
    return {"text": text}


def _limit() -> None:
    """Limit this process's memory and processor time from here on."""
    num_used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (num_used + NUM_BYTES, num_used + NUM_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)


if __name__ == "__main__":
    given = sys.stdin.buffer.read()
    _limit()
    sys.stdout.write(json.dumps(_answer(given)))
