"""Which GGUF file a model's name means, and the folder of small files that is made of its metadata.

The folder has what every reader of a model's folder looks for: config.json, generation_config.json, tokenizer.json and
tokenizer_config.json. It is kept beside the compiled kernels, under a hash of the header. Imports no torch.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from decoding.errors import ConfigError, listed
from decoding.kernels.cache import base_folder
from decoding.model.files.gguf_config import config_of, token_ids
from decoding.model.files.gguf_file import MAGIC, SUFFIX, GgufFile, part_names, read_gguf
from decoding.model.files.gguf_tokenizer import tokenizer_config, tokenizer_text
from decoding.model.files.hub_cache import cached_gguf, choose_projector, hub_name, is_projector

logger = logging.getLogger(__name__)
TextsOf = Callable[..., dict[str, str]]  # of files' metadata, the texts of small files by their names

FORMAT = 3  # of the folder; another one is made where this file makes others
FOLDER_NAME = re.compile(r"gguf-[0-9a-f]{16}(\.\w+\.part)?")
NUM_KEPT = 8  # the folders used last stay
SNAPSHOTS = "snapshots"  # in the hub's cache, the folder that a repository's files at a commit are below
NAMED = 6  # the most files that a sentence names


def gguf_paths(model: str, gguf_file: str | None, revision: str | None) -> tuple[Path, ...]:
    """The file that the model's name means, with all its parts; empty for a model in another format. Blocks: downloads
    files of the hub. Raises ConfigError where there is none or more than one to choose from."""
    path = Path(model)
    if path.is_file():
        if gguf_file is not None:
            raise ConfigError(f"--gguf-file chooses a file of a folder or of a hub model, and {model} is a file")
        return _parts(path) if path.suffix == SUFFIX or _begins_as_gguf(path) else ()
    if path.is_dir():
        name = gguf_file or chosen([each.name for each in path.iterdir()], f"the folder {model}")
        return () if name is None else _parts(path / name)
    if gguf_file is None:
        return _in_cache(model, revision)
    from huggingface_hub import hf_hub_download

    return tuple(Path(hf_hub_download(model, name, revision=revision)) for name in part_names(gguf_file))


def _in_cache(model: str, revision: str | None) -> tuple[Path, ...]:
    name = hub_name(model)
    paths = () if name is None else cached_gguf(name, revision)
    if not paths and name is not None and name.quantization is not None:
        raise ConfigError(f"{name} is not in the hub's cache: gander pull {name} brings it")
    return paths


def _begins_as_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def chosen(names: Sequence[str], what: str) -> str | None:
    """The one GGUF file among these; None where there is none, or config.json says that the model is in other files.
    Raises ConfigError, naming them, where there are several."""
    files = sorted(name for name in names if name.endswith(SUFFIX) and not is_projector(name))
    firsts = [name for name in files if part_names(name)[0] == name]
    if not files or ("config.json" in names and any(name.endswith((".safetensors", ".bin")) for name in names)):
        return None
    if len(firsts) > 1:
        raise ConfigError(
            f"{what} has several GGUF files: choose one with --gguf-file, or by its path: {listed(firsts, NAMED)}"
        )
    return (firsts or files)[0]


def _parts(path: Path) -> tuple[Path, ...]:
    parts = tuple(path.with_name(name) for name in part_names(path.name))
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        which = (
            "is not there" if len(parts) == 1 else f"lacks {len(missing)} of its {len(parts)} parts, {missing[0]} first"
        )
        raise ConfigError(f"the GGUF file {path} {which}")
    return parts


def projector_of(paths: Sequence[Path], named: str | None) -> Path | None:
    """The projector's file that belongs to a model's: the one that is named, or else the only one beside it; None where
    there is none. Raises ConfigError where the one that is named is not there, or several are beside it."""
    if named is not None:
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"--mmproj names {named}, which is no file")
        return path
    beside = paths[0].parent
    top = beside.parent if beside.parent.parent.name == SNAPSHOTS else beside  # of a repository in the hub's cache
    files = [path.relative_to(top).as_posix() for folder in {beside, top} for path in folder.iterdir()]
    found = choose_projector(files, paths[0].relative_to(top).as_posix())
    return None if found is None else top / found


def small_files(paths: Sequence[Path]) -> Path:
    """The folder of small files, made where it is not there yet. Raises ConfigError with a sentence that names the
    file."""
    return folder_of_texts((tuple(paths),), _small_texts)


def folder_of_texts(files: tuple[tuple[Path, ...], ...], texts_of: TextsOf) -> Path:
    """The folder of what `texts_of` makes of files, of each all its parts, made where it is not there yet. Raises
    ConfigError with a sentence that names the last of them."""
    stamps = tuple(
        tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths) for paths in files
    )
    folder = _made(stamps, texts_of)
    if not folder.is_dir():  # another process, which read other files, has removed it
        _made.cache_clear()
        folder = _made(stamps, texts_of)
    return folder


@cache
def _made(stamps: tuple[tuple[tuple[str, int, int], ...], ...], texts_of: TextsOf) -> Path:
    """One folder for each state of the files: in one process they are read once."""
    paths = [[Path(name) for name, _, _ in each] for each in stamps]
    try:
        files = [read_gguf(each) for each in paths]
        hashes = " ".join(file.header_hash for file in files)
        text = f"{FORMAT} {version('transformers')} {version('tokenizers')} {hashes}"
        name = f"gguf-{sha256(text.encode()).hexdigest()[:16]}"
        kept = _kept_folder(name)
        if kept is not None and kept.is_dir() and not kept.is_symlink():
            os.utime(kept)
            return kept
        texts = texts_of(*files)
    except ConfigError as error:
        raise ConfigError(f"the GGUF file {paths[-1][0].name} cannot be served: {error}") from error
    return _written(kept, texts)


def _small_texts(file: GgufFile) -> dict[str, str]:
    return {
        "config.json": json.dumps(config_of(file)),
        "generation_config.json": json.dumps(token_ids(file)),
        "tokenizer_config.json": json.dumps(tokenizer_config(file), ensure_ascii=False),
        "tokenizer.json": tokenizer_text(file),
    }


def _kept_folder(name: str) -> Path | None:
    try:
        return base_folder(os.environ) / name
    except RuntimeError:  # there is no home folder
        return None


def _written(kept: Path | None, texts: dict[str, str]) -> Path:
    """Write the folder whole, or a temporary one where it cannot be kept."""
    try:
        if kept is None:
            raise OSError("there is no home folder")
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = _filled(tempfile.mkdtemp(prefix=f"{kept.name}.", suffix=".part", dir=kept.parent), texts)
    except OSError as error:
        logger.info("What a GGUF file says of its model is read again at the next start: %s", error)
        temporary = _filled(tempfile.mkdtemp(prefix="gander-gguf-"), texts)
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return temporary
    try:
        partial.rename(kept)
    except OSError:  # another process was quicker
        shutil.rmtree(partial, ignore_errors=True)
    _remove_old(kept.parent)
    return kept


def _filled(folder: str, texts: dict[str, str]) -> Path:
    """The folder with these files. Raises OSError, and leaves no folder."""
    try:
        for name, text in texts.items():
            Path(folder, name).write_text(text, "utf-8")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Path(folder)


def _remove_old(base: Path) -> None:
    folders = [path for path in base.iterdir() if FOLDER_NAME.fullmatch(path.name) and path.is_dir()]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[NUM_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
