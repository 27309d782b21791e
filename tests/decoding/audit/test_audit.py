"""The audit tells what can be served from what cannot, each in a process of its own."""

from __future__ import annotations

import pytest

from decoding.audit.audit import audit_apart, known_types


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "lfm2", "mistral3"])
def test_a_type_that_can_be_served_passes(model_type: str) -> None:
    result = audit_apart(model_type)
    assert result.passed, result.reason


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("bloom", "attention interface"), ("udop", "no text model"), ("nonsense", "nonsense")],
)
def test_a_type_that_cannot_be_served_fails_with_the_reason(model_type: str, reason: str) -> None:
    result = audit_apart(model_type)
    assert not result.passed
    assert reason in result.reason


def test_the_audit_covers_every_causal_type() -> None:
    assert len(known_types()) > 150
