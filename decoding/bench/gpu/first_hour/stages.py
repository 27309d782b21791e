"""The stages of the measurement, each a process with a context of its own on the device, one after the other.

Beside the first of them a process without the device compiles what the host runs. Owns the processes; knows nothing of
what they measure. Invariant: no stage outlives its time, and what it had found by then is kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from decoding.bench.gpu.first_hour.record import Record

HOST = "host"  # compiles what the host runs; the first stages that need none of it run meanwhile
STAGES = {  # with the most seconds of each on a GPU
    "probe": 40.0,
    "kernels": 90.0,
    "model": 120.0,
    "tokens": 80.0,
    "tests": 120.0,
    "server": 120.0,
}
NEED_NO_HOST = ("probe", "kernels")
HOST_SECONDS = 200.0
GRACE = 5.0  # seconds that a stage has to say where it was
TAIL = 1500  # characters of a log


class Run(NamedTuple):
    """device: cuda or cpu. folder: for the logs, and the record."""

    device: str
    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "record.jsonl"


def run_stages(run: Run, stages: Sequence[str], seconds: float) -> list[str]:
    """Run these stages for so many seconds in all. Returns a sentence for each."""
    end = time.monotonic() + seconds
    limits = (STAGES | {HOST: HOST_SECONDS}) if run.device != "cpu" else dict.fromkeys((*STAGES, HOST), seconds)
    host, is_waited_for = start_stage(run, HOST, limits[HOST]), False
    told = []
    try:
        for stage in stages:
            if stage not in NEED_NO_HOST and not is_waited_for:
                is_waited_for = True
                told.append(_ended(run, HOST, host, min(limits[HOST], end - time.monotonic())))
            limit = min(limits[stage], end - time.monotonic())
            if limit <= GRACE:
                told.append(f"{stage}: no time is left")
                Record(run.record, stage).write("end", 0.0, failed="no time was left")
                continue
            told.append(_ended(run, stage, start_stage(run, stage, limit), limit))
    finally:
        stop(host)
    return told


def start_stage(run: Run, stage: str, limit: float) -> subprocess.Popen[bytes]:
    """Start the process of a stage, which ends itself shortly before the limit. Its output goes to a log."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    if run.device == "cpu":
        environment |= {"TRITON_INTERPRET": "1"}
    if stage == HOST:
        environment |= {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-u", "-m", "decoding.bench.gpu.first_hour.stage", stage]
    command += ["--device", run.device, "--record", str(run.record), "--seconds", str(max(1.0, limit - GRACE))]
    with (run.folder / f"{stage}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(run: Run, stage: str, process: subprocess.Popen[bytes], limit: float) -> str:
    """Wait for the end of a stage, be it by force; a sentence, which the record has too if something is wrong."""
    started = time.monotonic()
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, limit))
    stop(process)
    seconds = time.monotonic() - started
    if process.returncode == 0:
        return f"{stage}: done in {seconds:.0f} s"
    tail = (run.folder / f"{stage}.log").read_bytes().decode(errors="replace")[-TAIL:]
    Record(run.record, stage).write("end", seconds, failed=f"status {process.returncode}: {tail}")
    return f"{stage}: status {process.returncode} after {seconds:.0f} s, see {stage}.log"
