"""The tables of `docs/speedups.json` in README and `docs/speedups.md`: `python -m server.bench.pretrained.pages`.

Owns the sections between their markers; the prose around them is never touched.
"""

from __future__ import annotations

from pathlib import Path

from decoding.bench.tables.report import write_section
from server.bench.pretrained.figures import read_runs
from server.bench.pretrained.tables import details, summary

RUNS = "docs/speedups.json"
PAGES = {"README.md": summary, "docs/speedups.md": details}
SECTION = "speedups"


def main(root: Path = Path()) -> None:
    """Write the sections anew. root: of a checkout."""
    runs = read_runs(root / RUNS)
    for name, made in PAGES.items():
        write_section(root / name, "# Speed-ups\n", SECTION, made(runs))


if __name__ == "__main__":
    main()
