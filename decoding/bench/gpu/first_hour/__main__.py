"""Measures what is worth knowing of a GPU in 400 seconds: its ceilings, our kernels, an 8B of random weights, the
bundled model's tokens by every method, the tests of a GPU, and the server with real requests.

Writes a record, a line of JSON a measure, and the logs of the stages to a folder. With --page it also puts the record
into a section of that page. Nothing is downloaded. A stage needs what it imports: all but the server's run with torch,
Triton, transformers, numba, msgspec and tokenizers alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from decoding.bench.gpu.first_hour.page import render
from decoding.bench.gpu.first_hour.record import is_record, read_lines
from decoding.bench.gpu.first_hour.stages import STAGES, Run, run_stages
from decoding.bench.machine import describe_machine
from decoding.bench.tables.report import is_page, write_section
from decoding.core.files.output import check_output
from decoding.errors import ConfigError

SECONDS = 400.0


def read_options(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.gpu.first_hour", description=__doc__)
    parser.add_argument("stages", nargs="*", default=list(STAGES), help=f"by default all: {', '.join(STAGES)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all stages together")
    parser.add_argument("--out", type=Path, default=Path("first_hour"), help="the folder, by default first_hour")
    parser.add_argument("--device", default="cuda", help="cpu tries the program out, on tiny shapes")
    parser.add_argument("--page", type=Path, help="a page to put the record into, such as docs/gpu.md")
    options = parser.parse_args(given)
    if unknown := [each for each in options.stages if each not in STAGES]:
        parser.error(f"there is no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    return options


def main(given: Sequence[str]) -> int:
    options = read_options(given)
    where = describe_machine()
    if options.device != "cpu":
        if not torch.cuda.is_available():
            return _refuse("There is no GPU that torch can use here, so nothing was measured.")
        where = f"{torch.cuda.get_device_name(options.device)}, {where}"
    run = Run(options.device, options.out)
    try:
        check_output(run.record, is_record)
        if options.page is not None:
            check_output(options.page, is_page)
    except ConfigError as error:
        return _refuse(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    run.record.unlink(missing_ok=True)
    for sentence in run_stages(run, options.stages, options.seconds):
        sys.stdout.write(f"{sentence}\n")
    lines = read_lines(run.record.read_bytes())
    if options.page is not None:
        write_section(options.page, "# GPUs\n", "measured", render(lines, where))
    failed = sum(line.failed is not None for line in lines)
    sys.stdout.write(f"{run.record}: {len(lines)} measures, of which {failed} failed\n")
    return 1 if failed else 0


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
