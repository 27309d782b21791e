"""Attention as it is on a device."""

from __future__ import annotations

import pytest

from decoding.attention.triton import work

FEW_JOBS = work.FEW_JOBS  # before the tests' own number


@pytest.fixture(autouse=True)
def few_items_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FEW_JOBS", FEW_JOBS)
