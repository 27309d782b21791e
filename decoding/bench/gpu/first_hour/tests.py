"""The tests that a GPU runs: those marked for it, and those of Triton's kernels, compiled instead of interpreted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

from decoding.bench.gpu.first_hour.bench import Bench
from decoding.bench.gpu.first_hour.record import Record

# Files by name: collecting whole folders would import what is not installed there.
FILES = {
    "tests marked cuda": ("tests/decoding/model/device/test_cuda.py", "-m", "cuda"),
    "tests of kernels": (
        "tests/decoding/attention/triton/test_triton_attention.py",
        "tests/decoding/sampling/device/test_device_sampler.py",
        *("-m", "not slow"),
    ),
}
OPTIONS = ("-q", "-W", "default", "-p", "no:cacheprovider", "--maxfail=12", "--durations=5")
FAILED = re.compile(r"^(?:FAILED|ERROR) .*", re.MULTILINE)


def measure(bench: Bench, record: Record) -> None:
    more = ("--collect-only",) if bench.is_small else ()
    for name, arguments in FILES.items():
        record.measure(name, partial(ended, *more, *arguments))


def ended(*arguments: str) -> dict[str, Any]:
    """How a part of the tests ended, which failed, and what was said at last. Raises RuntimeError if any failed."""
    if find_spec("pytest") is None:
        return {"left_out": "pytest is not installed"}
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError("\n".join(FAILED.findall(said)) or said[-1500:])
    return {"said": said.strip().rpartition("\n")[2]}
