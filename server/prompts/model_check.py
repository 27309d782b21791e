"""Says before anything starts whether a model can be there: a folder, a GGUF file, or a name on the hub, and which file
it lacks.

Of what files hold it knows only that a GGUF file's header makes a model. Invariant: it asks the hub once, and waits
seconds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from pathlib import Path

from decoding.config import BUNDLED_MODEL
from decoding.errors import ConfigError
from decoding.model.files.gguf_place import gguf_paths, small_files
from decoding.model.files.hub_cache import HubName, choose_gguf, hub_name
from decoding.model.vision.projector_files import sight_of
from server.library.hub import HubUnreachable, NotOnHub, ask_hub

LOG = logging.getLogger("gander.model")
PATHS = ("/", "./", "../", "~", ".\\")  # how a folder's name begins that cannot be meant for the hub
OFFLINE = "HF_HUB_OFFLINE"  # the hub's own variable, which workers inherit
CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer*.json", "tokenizer.model", "*.tiktoken", "tekken.json", "vocab.*", "spiece.model", "*.spm")
LACKS = (
    ((CONFIG,), "config.json"),
    (WEIGHTS, "weights (*.safetensors)"),
    (TOKENIZERS, "tokenizer (tokenizer.json)"),
)


def check_model(
    name: str,
    revision: str | None,
    has_tokenizer: bool = True,
    gguf_file: str | None = None,
    mmproj: str | None = None,
) -> None:
    """Raises ConfigError where there is no such model, or where it lacks a file. has_tokenizer: whether it needs a
    tokenizer of its own. gguf_file: which file of the model. mmproj: the file of the projector that it is to see with.
    Blocks; asks the hub for a model that is no folder, and has everything that loads it later use the hub's cache alone
    where the hub cannot be reached."""
    path, gguf = Path(name), tuple[Path, ...]()
    try:
        if name == BUNDLED_MODEL:
            pass
        elif path.exists():
            gguf = gguf_paths(name, gguf_file, revision)
            if gguf:
                small_files(gguf)
            elif path.is_dir():
                _require_files([each.name for each in path.iterdir()], f"the folder {name}", has_tokenizer)
            else:
                raise ConfigError(
                    f"{name} is a file: a model is a folder with config.json, weights and tokenizer, a GGUF file, "
                    "or a hub name"
                )
        elif name.startswith(PATHS) or hub_name(name) is None:
            raise ConfigError(f"there is no folder {name}, and that is no name on the hub, such as org/model")
        elif gguf_file is None and (gguf := gguf_paths(name, None, revision)):
            small_files(gguf)
        else:
            _check_on_hub(name, revision, has_tokenizer, gguf_file)
        if mmproj is not None:
            _check_projector(name, gguf, gguf_file, mmproj)
    except OSError as error:
        raise ConfigError(f"the model {name} cannot be read: {error.strerror or error}") from error


def _check_projector(name: str, paths: Sequence[Path], gguf_file: str | None, mmproj: str) -> None:
    if paths:
        sight_of(paths, mmproj)
    elif gguf_file is None:  # which is not fetched yet
        raise ConfigError(f"--mmproj names the projector of a GGUF file, and {name!r} is none")


def _require_files(files: Collection[str], what: str, has_tokenizer: bool) -> None:
    for patterns, lacking in LACKS if has_tokenizer else LACKS[:2]:
        if not any(fnmatch(file, pattern) for file in files for pattern in patterns):
            advice = "give the folder of a whole model, with its small files, as the hub has it"
            if "adapter_config.json" in files:
                advice = "it holds an adapter; merge it into its model first"
            raise ConfigError(f"{what} has no {lacking}: {advice}")


def _check_on_hub(name: str, revision: str | None, has_tokenizer: bool, gguf_file: str | None) -> None:
    no_folder = f"there is no folder {name}"
    try:
        found = ask_hub(name, revision)
    except NotOnHub as error:
        raise ConfigError(f"{no_folder}, and {error}") from error
    except HubUnreachable as error:
        from huggingface_hub import try_to_load_from_cache

        if not isinstance(try_to_load_from_cache(name, gguf_file or CONFIG, revision=revision), str):
            advice = "give the path of a model's folder, or try again with a connection"
            raise ConfigError(f"{no_folder}, and {error}; {advice}") from error
        LOG.warning("The hub cannot be reached (%s): %s is loaded from its cache.", error, name)
        os.environ[OFFLINE] = "1"
        return
    files, what = [each.rfilename for each in found.siblings or ()], f"the model {name} on the hub"
    if gguf_file is None:
        if choose_gguf(files, HubName(name)):
            raise ConfigError(f"{what} is a GGUF file: gander pull {name} brings it")
        _require_files(files, what, has_tokenizer)
    elif gguf_file not in files:
        shown = ", ".join(file for file in files if file.endswith(".gguf")) or "no GGUF file"
        raise ConfigError(f"{what} has no file {gguf_file}: it has {shown}")


def is_offline() -> bool:
    """Whether the hub is not to be asked."""
    return os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")
