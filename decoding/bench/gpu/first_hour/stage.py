"""One stage of the measurement, in a process of its own: `python -m decoding.bench.gpu.first_hour.stage NAME ...`."""

from __future__ import annotations

import argparse
import faulthandler
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from decoding.bench.gpu.first_hour import kernels, model, probe, server, tests, tokens
from decoding.bench.gpu.first_hour.bench import Bench
from decoding.bench.gpu.first_hour.record import DeviceFailed, Record
from decoding.bench.gpu.first_hour.stages import HOST

MEASURES: dict[str, Callable[[Bench, Record], None]] = {
    HOST: tokens.compile_host,
    "probe": probe.measure,
    "kernels": kernels.measure,
    "model": model.measure,
    "tokens": tokens.measure,
    "tests": tests.measure,
    "server": server.measure,
}


def read_options(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.gpu.first_hour.stage", description=__doc__)
    parser.add_argument("stage", choices=MEASURES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--record", type=Path, required=True, help="the file that lines are added to")
    parser.add_argument("--seconds", type=float, default=120.0, help="after which it says where it is, and ends")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    options = read_options(given)
    faulthandler.enable()
    faulthandler.dump_traceback_later(options.seconds, exit=True)
    device = torch.device("cpu" if options.stage == HOST else options.device)
    bench = Bench(device, is_small=options.device == "cpu")
    try:
        MEASURES[options.stage](bench, Record(options.record, options.stage))
    except DeviceFailed as failed:
        sys.stderr.write(f"The device failed at {failed}; the rest of this stage is left out.\n")
        return 3
    finally:
        faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
