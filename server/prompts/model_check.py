"""Says before anything starts whether a model can be there: a folder, or a name on the hub, and which file it lacks.

Knows nothing of what the files hold. Invariant: it asks the hub once, and waits seconds.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from decoding.config import BUNDLED_MODEL
from decoding.errors import ConfigError, in_one_line

LOG = logging.getLogger("gander.model")
PATHS = ("/", "./", "../", "~", ".\\")  # how a folder's name begins that cannot be meant for the hub
HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
HUB_SECONDS = 8.0
OFFLINE = "HF_HUB_OFFLINE"  # the hub's own variable, which workers inherit
CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer*.json", "tokenizer.model", "*.tiktoken", "tekken.json", "vocab.*", "spiece.model", "*.spm")
LACKS = (
    ((CONFIG,), "config.json"),
    (WEIGHTS, "weights (*.safetensors)"),
    (TOKENIZERS, "tokenizer (tokenizer.json)"),
)


def check_model(name: str, revision: str | None, has_tokenizer: bool = True) -> None:
    """Raises ConfigError where there is no such model, or where it lacks a file. has_tokenizer: whether it needs a
    tokenizer of its own. Blocks; asks the hub for a model that is no folder, and has everything that loads it later use
    the hub's cache alone where the hub cannot be reached."""
    path = Path(name)
    if name == BUNDLED_MODEL:
        return
    if path.is_dir():
        _require_files([each.name for each in path.iterdir()], f"the folder {name}", has_tokenizer)
    elif path.exists():
        kind = "a GGUF file, a format that is not read" if path.suffix == ".gguf" else "a file"
        raise ConfigError(
            f"{name} is {kind}: a model is a folder with config.json, weights and tokenizer, or a hub name"
        )
    elif name.startswith(PATHS) or HUB_NAME.fullmatch(name) is None:
        raise ConfigError(f"there is no folder {name}, and that is no name on the hub, such as org/model")
    else:
        _check_on_hub(name, revision, has_tokenizer)


def _require_files(files: Collection[str], what: str, has_tokenizer: bool) -> None:
    for patterns, lacking in LACKS if has_tokenizer else LACKS[:2]:
        if not any(fnmatch(file, pattern) for file in files for pattern in patterns):
            advice = "give the folder of a whole model, with its small files, as the hub has it"
            if any(file.endswith(".gguf") for file in files):
                advice = "it has a GGUF file, a format that is not read"
            elif "adapter_config.json" in files:
                advice = "it holds an adapter; merge it into its model first"
            raise ConfigError(f"{what} has no {lacking}: {advice}")


def _check_on_hub(name: str, revision: str | None, has_tokenizer: bool) -> None:
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    no_folder = f"there is no folder {name}"
    try:
        found: Any = HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except GatedRepoError as error:
        raise ConfigError(f"the model {name} is gated: ask for access on its page, and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        sentence = "and the hub has no model of this name; a private one needs HF_TOKEN"
        raise ConfigError(f"{no_folder}, {sentence}") from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"the model {name} has no revision {revision} on the hub") from error
    except Exception as error:  # the network and its libraries raise anything
        reason = in_one_line(error)
        if not isinstance(try_to_load_from_cache(name, CONFIG, revision=revision), str):
            sentence = f"and the hub cannot be reached to look for {name}: {reason.rstrip('.')}"
            advice = "give the path of a model's folder, or try again with a connection"
            raise ConfigError(f"{no_folder}, {sentence}; {advice}") from error
        LOG.warning("The hub cannot be reached (%s): %s is loaded from its cache.", reason, name)
        os.environ[OFFLINE] = "1"
        return
    _require_files([each.rfilename for each in found.siblings or ()], f"the model {name} on the hub", has_tokenizer)


def is_offline() -> bool:
    """Whether the hub is not to be asked."""
    return os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")
