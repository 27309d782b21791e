"""Matrix products whose rows do not depend on where they lie, as those of tensor cores do not: a processor's libraries
compute the last rows of a matrix otherwise than the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


def use_row_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, and in linear layers."""
    use_row_exact_dots(monkeypatch)

    def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        found = (rows[..., None, :] * weight).sum(-1)
        return found if bias is None else found + bias

    monkeypatch.setattr(torch.nn.functional, "linear", linear)


def use_row_exact_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter alone."""
    from triton.runtime import interpreter

    def dot(_builder: Any, a: Any, b: Any, d: Any, *_precision: Any) -> Any:
        with np.errstate(all="ignore"):  # memory that nobody has written may hold anything
            products = a.data.astype(np.float32)[:, :, None] * b.data.astype(np.float32)[None]
            return interpreter.TensorHandle(products.sum(1, dtype=np.float32) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
