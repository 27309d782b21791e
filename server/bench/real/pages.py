"""README, page and picture made of `docs/real_models.json`: `python -m server.bench.real.pages`.

Owns the sections between their markers; the prose around them is never touched.
"""

from __future__ import annotations

from pathlib import Path

from decoding.bench.tables.report import write_section
from server.bench.real.figures import read_runs
from server.bench.real.plot import plot_runs
from server.bench.real.tables import PICTURE, details, summary

RUNS = "docs/real_models.json"
PAGES = {"README.md": summary, "docs/real_models.md": details}
SECTION = "real models"


def main(root: Path = Path()) -> None:
    """Write the sections anew. root: of a checkout."""
    runs = read_runs(root / RUNS)
    for name, made in PAGES.items():
        write_section(root / name, "# Real models\n", SECTION, made(runs))
    plot_runs(runs, root / "docs" / PICTURE)


if __name__ == "__main__":
    main()
