"""Models in GGUF files decode exactly, draft for others, and hold what was announced."""

import os
from pathlib import Path

import pytest
import torch

from decoding.config import EngineConfig
from decoding.drafting.draft_model.draft_model import load_draft_model
from decoding.errors import ConfigError
from decoding.model.checkpoint import resolve
from decoding.model.device.runner import silent
from decoding.model.files.gguf_file import read_gguf
from decoding.model.files.gguf_place import small_files
from decoding.model.loading import load_gguf, load_model, packed_kinds
from decoding.model.target_model import TargetModel
from decoding.sampling.grammar.builder import GrammarBuilder
from decoding.weights.linear import matrices_in
from decoding.weights.matrix import Target
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.models import tiny

REAL = os.environ.get("GANDER_REAL_MODELS")
PACKED = Target(torch.float32, torch.device("cpu"), is_packed=True)


def config_of(path: Path, **options: object) -> EngineConfig:
    return EngineConfig(model=str(path), device="cpu", threads=1, **options)  # type: ignore[arg-type]


def test_a_packed_model_is_exact_and_known_by_its_weights(tmp_path: Path) -> None:
    first, other = (
        write_gguf(tmp_path / f"{seed}.gguf", tiny("llama", seed, vocab_size=VOCAB_SIZE), "Q4_1") for seed in (1, 2)
    )
    model, same = (TargetModel.load(config_of(first), silent) for _ in range(2))
    assert model.is_exact
    assert (model.weights, model.vocab_size, model.eos_token_ids) == ("Q4_1", VOCAB_SIZE, frozenset((2,)))
    assert model.num_parameters == tiny("llama", vocab_size=VOCAB_SIZE).num_parameters()
    assert model.num_bytes < model.num_parameters
    assert model.fingerprint == same.fingerprint != TargetModel.load(config_of(other), silent).fingerprint


@pytest.mark.parametrize(
    ("number", "name"), [(15, "Q4_K_M"), (0, "Q4_1"), (1024, "Q4_1"), (5000, "Q4_1"), ("15", "Q4_1")]
)
def test_a_mixture_has_the_name_that_its_file_gives(number: object, name: str, tmp_path: Path) -> None:
    model = tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1)
    path = write_gguf(tmp_path / "model.gguf", model, "Q4_1", {"general.file_type": number})
    file = read_gguf([path])
    assert load_gguf(file, str(small_files([path])), PACKED)[1].name == name


def test_a_file_drafts_for_a_file(tmp_path: Path) -> None:
    target, draft = (
        write_gguf(tmp_path / f"{layers}.gguf", tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=layers), "Q8_0")
        for layers in (3, 1)
    )
    model = load_draft_model(config_of(target, draft_model=str(draft)), silent)
    assert model is not None
    assert len(model.layers) == 1


def test_grammars_have_the_files_tokenizer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1))
    file = GrammarBuilder(config_of(path), VOCAB_SIZE, frozenset((2,)))._tokenizer_file()
    assert Path(file.path).name == "tokenizer.json"
    assert file.load()


def test_weights_that_are_packed_are_not_rounded_again(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1), "Q8_0")
    with pytest.raises(ConfigError, match=r"quantised already: weights 'int8' is for"):
        load_model(str(path), config_of(path, weights="int8", dtype="float32"))


@pytest.mark.real
@pytest.mark.skipif(REAL is None, reason="GANDER_REAL_MODELS names no folder of real models")
def test_smollm2_continues_a_sentence() -> None:
    from tokenizers import Tokenizer

    from decoding.model.files.gguf_file import read_gguf
    from decoding.weights.matrix import Target

    config, folder = resolve(config_of(Path(str(REAL)) / "smollm2.gguf"))
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    model, packed = load_gguf(
        read_gguf([Path(config.model)]), folder, Target(torch.float32, torch.device("cpu"), is_packed=True)
    )
    assert packed.name == "Q4_1"
    ids = tokenizer.encode("The capital of France is").ids
    with torch.inference_mode():
        for _ in range(3):
            ids.append(int(model.eval()(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert "Paris" in tokenizer.decode(ids)


def test_the_kernels_that_a_files_weights_need_are_known_before_it_is_loaded(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1), "Q5_0")
    kinds = packed_kinds(resolve(config_of(path))[0])
    assert (5, 32, 2) in kinds
    model = TargetModel.load(config_of(path), silent)
    assert {
        (matrix.kind.bits, matrix.kind.group, matrix.kind.scale_bytes) for matrix in matrices_in(model._model)
    } == kinds
    assert packed_kinds(resolve(EngineConfig(device="cpu", weights="int4"))[0]) == {(4, 32, 2), (6, 32, 2)}
    assert packed_kinds(resolve(EngineConfig(device="cpu"))[0]) == set()
