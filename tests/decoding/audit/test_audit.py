"""The audit tells what can be served from what cannot, each in a process of its own."""

from __future__ import annotations

import pytest

from decoding.audit.audit import audit, audit_apart, known_types


def test_a_type_that_can_be_served_passes_in_a_process_of_its_own() -> None:
    result = audit_apart("llama")
    assert result.passed, result.reason


@pytest.mark.parametrize("model_type", ["gpt2", "lfm2", "mistral3"])
def test_a_type_that_can_be_served_passes(model_type: str) -> None:
    assert audit(model_type).passed, audit(model_type).reason


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("bloom", "attention interface"), ("udop", "no text model"), ("nonsense", "nonsense")],
)
def test_a_type_that_cannot_be_served_fails_with_the_reason(model_type: str, reason: str) -> None:
    result = audit_apart(model_type)
    assert not result.passed
    assert reason in result.reason


@pytest.mark.parametrize("model_type", ["bailing_hybrid", "zamba"])
def test_states_that_are_known_by_the_names_of_their_functions_pass(model_type: str) -> None:
    assert audit(model_type).passed, audit(model_type).reason


@pytest.mark.parametrize(
    ("model_type", "sentence"),
    [
        ("minimax", "carry a state in a way of their own"),
        ("recurrent_gemma", "carry a state in a way of their own"),
        ("rwkv", "no layer calls transformers' attention interface"),
        ("xlstm", "no layer calls transformers' attention interface"),
        ("zaya", "keep state of its own between rows"),
        ("inkling_text", "its attention has position_bias, which no kernel here computes"),
        ("qwen4_exp_text", "it computes with the masks that it asks for"),
    ],
)
def test_states_of_another_kind_are_refused_with_a_sentence(model_type: str, sentence: str) -> None:
    reason = audit(model_type).reason
    assert sentence in reason
    assert "cannot be served: " in reason
    assert "Error" not in reason


def test_the_audit_covers_every_causal_type() -> None:
    assert len(known_types()) > 150
