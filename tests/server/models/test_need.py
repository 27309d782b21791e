"""How much memory a model is taken to need before it is loaded."""

from __future__ import annotations

from pathlib import Path

from server.config import ServerSettings
from server.models.need import needed_bytes
from tests.mmproj_files import write_language, write_mmproj
from tests.seeing import tiny_seeing


def test_what_a_model_sees_with_takes_memory_too(tmp_path: Path) -> None:
    own = tiny_seeing("idefics3", tmp_path / "hub")
    model = write_language(tmp_path / "model.gguf", "idefics3", own)
    size = model.stat().st_size
    assert needed_bytes(ServerSettings(model=str(model))) == size
    projector = write_mmproj(tmp_path / "mmproj.gguf", "idefics3", own)
    both = size + projector.stat().st_size
    for name in (model, tmp_path):
        assert needed_bytes(ServerSettings(model=str(name))) == both
    assert needed_bytes(ServerSettings(model=str(model), images=False)) == size
