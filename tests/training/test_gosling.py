"""The bundled model: it loads by itself, solves held-out problems and ends with its end token."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoding.training.evaluate import complete, has_loop, is_consistent
from decoding.training.export import load_exported
from decoding.training.gosling import DRAFT_FOLDER, parse_arguments
from decoding.training.texts.prompts import check_answer, held_out_prompts

FOLDER = parse_arguments([]).out
needs_weights = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(), reason="the bundled model is not here")


@pytest.mark.slow
@needs_weights
def test_the_bundled_model_solves_held_out_problems_and_ends() -> None:
    model = load_exported(FOLDER, torch.device("cpu"))
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    prompts = held_out_prompts("reasoning", 12, seed=1)
    done = complete(model, tokenizer, prompts, 160)
    assert sum(check_answer(prompt, completion.text) for prompt, completion in zip(prompts, done, strict=True)) >= 9
    assert all(completion.is_ended for completion in done)


@needs_weights
@pytest.mark.parametrize("folder", [FOLDER, FOLDER / DRAFT_FOLDER])
def test_each_folder_loads_with_the_auto_classes(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]
    assert model(ids).logits.shape == (1, ids.shape[1], len(tokenizer))
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|end|>"])


@needs_weights
def test_the_bundled_folder_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 16_000_000


def test_a_repeated_run_of_words_is_a_loop() -> None:
    words = "one two three four five six seven eight"
    assert has_loop(f"{words} and {words}")
    assert not has_loop(f"{words} and nine")


def test_a_story_with_a_third_name_is_not_consistent() -> None:
    assert is_consistent("Tom, a fox, and Mia, a bear.", "Tom met Mia.")
    assert not is_consistent("Tom, a fox, and Mia, a bear.", "Then Ben came.")
