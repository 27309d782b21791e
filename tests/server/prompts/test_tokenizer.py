"""What a model's tokenizer says of its tokens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

import decoding
from server.prompts.model_files import ModelFiles
from server.prompts.tokenizer import load_tokenizer

GOSLING = Path(decoding.__file__).parent / "gosling"


@pytest.mark.parametrize("has_file", [True, False])
def test_marks_are_the_tokens_that_grammars_take_for_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_file: bool
) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(GOSLING / name, tmp_path)
    path = tmp_path / "tokenizer.json"
    fast = FastTokenizer.from_file(str(GOSLING / path.name))
    fast.add_tokens([AddedToken(name, special=name == "[CALLS]") for name in ("[CALLS]", "[x]", "<tool_call>", "<b")])
    fast.save(str(path))
    if not has_file:  # the library's own tokenizer is taken
        monkeypatch.setattr(ModelFiles, "find", lambda *_: None)
    tokenizer = load_tokenizer(ModelFiles(str(tmp_path), None), trust_remote_code=False)
    grammars = LLTokenizer(str(path), n_vocab=fast.get_vocab_size(), eos_token=[0])
    special = {fast.id_to_token(each) for each in fast.get_added_tokens_decoder() if grammars.is_special_token(each)}
    assert set(tokenizer.marks) == special
    assert {"[CALLS]", "<tool_call>"} <= special
    assert all(fast.token_to_id(name) == token_id for name, token_id in tokenizer.marks.items())
