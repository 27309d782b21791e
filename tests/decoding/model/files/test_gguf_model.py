"""A GGUF file's model has the logits of the transformers model with the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from decoding.model.files.gguf_file import read_gguf
from decoding.model.files.gguf_place import small_files
from decoding.model.files.weight import Target
from decoding.model.loading import load_gguf
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.models import tiny

DENSE = Target(torch.float32, torch.device("cpu"), is_packed=False)
PACKED = Target(torch.float32, torch.device("cpu"), is_packed=True)
IDS = torch.tensor([[5, 9, 4, 120, 77, 3, 44, 45, 46, 130, 8, 9]])
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen2moe": ("qwen2_moe", {}),
    "qwen3moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "gemma2": ("gemma2", {"tie_word_embeddings": True, "final_logit_softcapping": 20.0}),
    "gemma3": ("gemma3_text", {"layer_types": None, "num_hidden_layers": 7, "tie_word_embeddings": True}),
    "phi3": ("phi3", {}),
    "gpt-oss": ("gpt_oss", {}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5}),
    "olmo2": ("olmo2", {}),
}


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=IDS).logits


def loaded(path: Path, target: Target = DENSE) -> PreTrainedModel:
    return load_gguf(read_gguf([path]), str(small_files([path])), target)[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_file_has_the_logits_of_the_model_it_was_written_from(name: str, tmp_path: Path) -> None:
    model_type, changes = MODELS[name]
    model = tiny(model_type, vocab_size=VOCAB_SIZE, **changes)
    path = write_gguf(tmp_path / "model.gguf", model)
    torch.testing.assert_close(logits_of(loaded(path)), logits_of(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0", "F16", "BF16"])
@pytest.mark.parametrize("name", ["llama tied", "qwen3moe", "gpt-oss", "gemma3"])
def test_packed_weights_have_the_logits_of_the_same_weights_unpacked(name: str, kind: str, tmp_path: Path) -> None:
    model_type, changes = MODELS[name]
    path = write_gguf(tmp_path / "model.gguf", tiny(model_type, vocab_size=VOCAB_SIZE, **changes), kind)
    packed, dense = logits_of(loaded(path, PACKED)), logits_of(loaded(path))
    assert (packed - dense).abs().max() < 0.3 * dense.abs().max()  # activations are rounded, and experts may change
