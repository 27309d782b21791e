"""Models packed in 4 bits at load: what is packed, and how exact it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from decoding.config import EngineConfig
from decoding.model.linear.packed import round_weights
from decoding.model.target_model import TargetModel
from decoding.weights.linear import Embedding, Linear, num_bytes_in
from decoding.weights.numbers.onednn_floats import can_pack
from tests.models import tiny

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="this torch packs no layers")


@pytest.mark.parametrize("is_tied", [False, True])
def test_all_layers_are_packed_and_a_tied_head_shares_the_embeddings_memory(is_tied: bool) -> None:
    model = tiny("llama", tie_word_embeddings=is_tied)
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        expected = model(ids).logits
        embedded = model.get_input_embeddings()(ids)
        round_weights("int4", model)
        logits = model(ids).logits
    layers = [each for each in model.modules() if isinstance(each, Linear)]
    embedding = model.get_input_embeddings()
    assert not any(type(each) in (nn.Linear, nn.Embedding) and each.weight.shape[0] >= 64 for each in model.modules())
    assert isinstance(embedding, Embedding)
    assert (embedding.matrix is model.get_output_embeddings().matrix) == is_tied
    own_bytes = 0 if is_tied else embedding.matrix.nbytes
    dense_bytes = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    assert num_bytes_in(model) == dense_bytes + own_bytes + sum(each.matrix.nbytes for each in layers)
    assert (embedding(ids) - embedded).norm() < 0.03 * embedded.norm()
    assert (logits - expected).norm() < 0.2 * expected.norm()


def test_a_model_of_int4_weights_is_exact_and_another_model() -> None:
    config = EngineConfig(max_model_len=64, threads=1)
    model = TargetModel.from_model(tiny("llama"), config)
    packed = TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=64, threads=1, weights="int4"))
    assert packed.is_exact
    assert (model.weights, packed.weights) == ("float32", "int4")
    assert packed.fingerprint != model.fingerprint
    assert packed.num_bytes < model.num_bytes / 3
    assert packed.shared.embeddings.shape == model.shared.embeddings.shape
    assert (packed.num_parameters, packed.vocab_size) == (model.num_parameters, model.vocab_size)
