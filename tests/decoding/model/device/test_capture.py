"""Only what cannot be captured runs as it comes: a device that fails is no reason to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decoding.errors import ModelRefused
from decoding.model.device.capture import CudaCapture

CAPTURING = "CUDA error: operation not permitted when stream is capturing"
POOL, OWN = (0, 1), SimpleNamespace(device_index=0, name="own")


class FakeCuda:
    """Torch's functions for captures, on a device that says `error` in one. Ending that capture fails as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: RuntimeError) -> None:
        self.stream: Any = OWN
        self.ended: list[object] = []
        self._error = error
        side = SimpleNamespace(wait_stream=lambda _: None, synchronize=lambda: None)
        for name, found in {
            "Stream": lambda _: side,
            "graph_pool_handle": lambda: POOL,
            "CUDAGraph": lambda: SimpleNamespace(replay=None),
            "current_stream": lambda: self.stream,
            "set_stream": self._set,
            "stream": self._on,
            "graph": self._capturing,
        }.items():
            monkeypatch.setattr(torch.cuda, name, found)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *given: self.ended.append(given), raising=False)

    def _set(self, stream: Any) -> None:
        self.stream = stream

    @contextmanager
    def _on(self, _stream: Any) -> Iterator[None]:
        yield

    @contextmanager
    def _capturing(self, _graph: Any, stream: Any, **_options: Any) -> Iterator[None]:
        self.stream = stream
        try:
            yield
        finally:
            raise self._error


def refused(monkeypatch: pytest.MonkeyPatch, error: RuntimeError) -> tuple[FakeCuda, Exception]:
    cuda = FakeCuda(monkeypatch, error)
    with pytest.raises((ModelRefused, RuntimeError)) as caught:
        CudaCapture(torch.device("cpu")).note(lambda: None)
    return cuda, caught.value


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(CAPTURING),
        RuntimeError("Triton Error [CUDA]: operation not permitted when stream is capturing"),
        RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture"),
    ],
)
def test_a_forward_that_waits_is_refused_with_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    cuda, raised = refused(monkeypatch, error)
    assert isinstance(raised, ModelRefused)
    assert str(error) in str(raised)
    assert cuda.stream is OWN, "and the next operation runs where it should"
    assert cuda.ended == [(0, POOL)], "and takes no memory of the capture's"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.7 GiB"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    ],
)
def test_a_device_that_fails_is_not_taken_for_a_forward_that_waits(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    _, raised = refused(monkeypatch, error)
    assert raised is error
