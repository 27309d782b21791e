"""Owns the model folder: weights in 16-bit floats, configuration, generation settings and the tokenizer beside them.

Does not know training. Invariant: each written folder loads by itself with the Auto classes of transformers.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaForCausalLM

from decoding.training.texts.corpus import END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS
from decoding.training.tokenizer import save_tokenizer


def export_model(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the folder; the model itself keeps its 32-bit weights."""
    halved = LlamaForCausalLM(model.config)
    halved.load_state_dict(model.state_dict())
    halved = halved.to(torch.float16)
    end_of_text, end_of_turn = (SPECIAL_TOKENS.index(token) for token in (END_OF_TEXT, END_OF_TURN))
    halved.generation_config = GenerationConfig(
        eos_token_id=[end_of_text, end_of_turn],
        pad_token_id=end_of_text,
        do_sample=False,
    )
    halved.config.eos_token_id = [end_of_text, end_of_turn]
    halved.save_pretrained(str(folder))
    save_tokenizer(tokenizer, folder)


def load_exported(folder: Path, device: torch.device) -> LlamaForCausalLM:
    """The exported model for evaluation: its rounded weights as 32-bit floats."""
    model = LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    return model.to(device).eval()
