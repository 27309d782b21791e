"""The benchmark of packed weights names every kind, and measures it at every number of rows and threads."""

from __future__ import annotations

import pytest
import torch

from decoding.bench.kernels import products


def test_a_kind_has_a_line_for_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SHAPES", ((64, 256), (128, 512)))
    threads = torch.get_num_threads()
    lines = products.measured(["Q4_K", "Q8_0"], [1, 3], [1, 2], rounds=1, num_bytes=1 << 16).splitlines()
    torch.set_num_threads(threads)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[:3] for row in cells] == [
        *(["memory alone", "", count] for count in "12"),
        *(["Q4_K", "4.75", count] for count in "12"),
        *(["Q8_0", "8.62", count] for count in "12"),
    ]
    assert all(float(cell) >= 0 for row in cells for cell in row[3:])
    assert {len(row) for row in cells} == {5}
