"""Which file a name means, and the folder that is made of it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from decoding.errors import ConfigError
from decoding.model.files.gguf_file import part_names, read_gguf
from decoding.model.files.gguf_place import gguf_paths, small_files
from decoding.model.loading import load_gguf
from decoding.weights.matrix import Target
from tests.gguf_files import CHAT_TEMPLATE, VOCAB_SIZE, write_gguf
from tests.models import tiny

PARTS = ("tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf")


def write_parts(folder: Path) -> Path:
    """A file of two parts, as llama.cpp's gguf-split writes them: metadata in the first, tensors in both."""
    whole = read_gguf([write_gguf(folder / "whole.gguf", tiny("qwen2", vocab_size=VOCAB_SIZE), "Q8_0")])
    (folder / "whole.gguf").rename(folder / "whole.kept")
    names = sorted(whole.tensors)
    for number, name in enumerate(PARTS):
        writer = gguf.GGUFWriter(folder / name, "qwen2")
        for key, value in whole.metadata.items() if number == 0 else ():
            if key == "general.architecture":
                continue
            given = list(value) if not isinstance(value, str | int | float | bool) else value
            if isinstance(given, list):
                given = [each.item() if isinstance(each, np.generic) else each for each in given]
            writer.add_key_value(key, given, gguf.GGUFValueType.get_type(given), _element(given))
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", len(PARTS))
        for tensor in (whole.tensors[each] for each in names[number::2]):
            kind = gguf.GGMLQuantizationType[tensor.kind.name]
            rows = tensor.rows.reshape(*tensor.shape[:-1], -1)
            writer.add_tensor(tensor.name, np.array(rows), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder / PARTS[0]


def _element(given: object) -> gguf.GGUFValueType | None:
    return gguf.GGUFValueType.get_type(given[0]) if isinstance(given, list) else None


def test_a_file_a_folder_and_a_chosen_file_are_found(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    assert gguf_paths(str(tmp_path / "a.gguf"), None, None) == (tmp_path / "a.gguf",)
    assert gguf_paths(str(tmp_path), "b.gguf", None) == (tmp_path / "b.gguf",)
    with pytest.raises(ConfigError, match=r"choose one with --gguf-file, or by its path: a.gguf, b.gguf"):
        gguf_paths(str(tmp_path), None, None)
    with pytest.raises(ConfigError, match=r"c.gguf is not there"):
        gguf_paths(str(tmp_path), "c.gguf", None)
    with pytest.raises(ConfigError, match=r"and .*a.gguf is a file"):
        gguf_paths(str(tmp_path / "a.gguf"), "b.gguf", None)
    (tmp_path / "b.gguf").unlink()
    assert gguf_paths(str(tmp_path), None, None) == (tmp_path / "a.gguf",)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    assert gguf_paths(str(tmp_path), None, None) == ()
    assert gguf_paths("org/model", None, None) == ()


def test_a_file_is_known_by_its_first_bytes_too(tmp_path: Path) -> None:
    path = tmp_path / "sha256-12ab"  # as Ollama names them
    path.write_bytes(b"GGUF and more")
    assert gguf_paths(str(path), None, None) == (path,)
    path.write_bytes(b"GG")
    assert gguf_paths(str(path), None, None) == ()


def test_all_parts_of_a_split_file_are_found(tmp_path: Path) -> None:
    assert part_names(PARTS[1]) == PARTS
    assert part_names("tiny.gguf") == ("tiny.gguf",)
    (tmp_path / PARTS[0]).touch()
    with pytest.raises(ConfigError, match=f"lacks 1 of its 2 parts, {PARTS[1]} first"):
        gguf_paths(str(tmp_path), None, None)
    (tmp_path / PARTS[1]).touch()
    assert gguf_paths(str(tmp_path), None, None) == tuple(tmp_path / name for name in PARTS)
    assert gguf_paths(str(tmp_path / PARTS[1]), None, None) == tuple(tmp_path / name for name in PARTS)


def test_a_split_file_loads_as_the_whole_one(tmp_path: Path) -> None:
    target = Target(torch.float32, torch.device("cpu"), is_packed=False)
    paths = gguf_paths(str(write_parts(tmp_path)), None, None)
    split, _ = load_gguf(read_gguf(paths), str(small_files(paths)), target)
    whole = [tmp_path / "whole.kept"]
    model, _ = load_gguf(read_gguf(whole), str(small_files(whole)), target)
    for (name, one), (_, other) in zip(split.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    with pytest.raises(ConfigError, match="is part of a split file of 2 parts, and 1 are there"):
        read_gguf(paths[:1])


def test_tokenizer_and_template_are_the_files_own(tmp_path: Path, own_folder: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE))
    folder = small_files([path])
    assert folder.parent == own_folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    encoded = tokenizer.encode("ab é<|im_end|>")
    assert encoded.tokens == ["<s>", "ab", "Ġ", "Ã", "©", "<|im_end|>"]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == "<s>ab é<|im_end|>"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["chat_template"], config["bos_token"], config["eos_token"]) == (CHAT_TEMPLATE, "<s>", "<|im_end|>")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2]


def test_old_folders_are_removed_and_used_ones_stay(tmp_path: Path, own_folder: Path) -> None:
    model = tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1)
    folders = [
        small_files([write_gguf(tmp_path / f"{number}.gguf", model, metadata={"general.name": str(number)})])
        for number in range(10)
    ]
    assert len(set(folders)) == 10
    assert sorted(own_folder.iterdir()) == sorted(folders[2:])


def test_a_folder_that_another_process_removed_is_made_again(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1))
    folder = small_files([path])
    shutil.rmtree(folder)
    assert small_files([path]) == folder
    assert (folder / "tokenizer.json").is_file()


def test_a_folder_that_cannot_be_filled_leaves_nothing(
    tmp_path: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def write_unless_full(path: Path, *text: str) -> int:
        if own_folder in path.parents and path.name == "tokenizer.json":
            raise OSError(28, "No space left on device")
        return write(path, *text)

    monkeypatch.setattr(Path, "write_text", write_unless_full)
    path = write_gguf(tmp_path / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1))
    folder = small_files([path])
    assert (folder / "tokenizer.json").is_file()
    assert not [*own_folder.iterdir()]


def test_it_is_read_without_torch(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1))
    program = (
        "import sys\nfrom pathlib import Path\nfrom decoding.model.files.gguf_place import small_files\n"
        f"small_files([Path({str(path)!r})])\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
