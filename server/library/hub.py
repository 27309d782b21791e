"""What the hub has of a model, and which of its files are needed: one GGUF file, or safetensors with the small files.

Knows nothing of the cache. Invariant: no pickle is needed, since reading one runs what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from decoding.errors import ConfigError, in_one_line
from decoding.model.files.hub_cache import HubName, choose_gguf, choose_projector, hub_name

HUB_SECONDS = 8.0  # that the hub may take for an answer
SAFETENSORS = "*.safetensors"
FEWER = "model*.safetensors"  # what is read where a repository has the same weights in other files, too
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
SMALL = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.spm", "merges.txt", "vocab.txt")


class NotOnHub(ConfigError):
    """The hub has no such model, or none for this token."""


class HubUnreachable(ConfigError):
    """The hub does not answer, so that nothing is known of what it has."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """sha256: of large files alone."""

    name: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class HubModel:
    """files: those that are needed."""

    name: HubName
    revision: str | None
    files: tuple[HubFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def ask_hub(repo: str, revision: str | None, files_metadata: bool = False) -> Any:
    """The hub's `ModelInfo`. Blocks, for seconds. Raises NotOnHub, HubUnreachable or ConfigError."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return HfApi().model_info(repo, revision=revision, timeout=HUB_SECONDS, files_metadata=files_metadata)
    except GatedRepoError as error:
        raise ConfigError(f"the model {repo} is gated: ask for access on its page, and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise NotOnHub("the hub has no model of this name; a private one needs HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"the model {repo} has no revision {revision} on the hub") from error
    except Exception as error:  # the network and its libraries raise anything
        reason = in_one_line(error).rstrip(".")
        raise HubUnreachable(f"the hub cannot be reached to look for {repo}: {reason}") from error


def look_up(text: str, revision: str | None = None) -> HubModel:
    """The model of a name, org/model or org/model:Q4_K_M. Blocks. Raises ConfigError with a sentence."""
    name = hub_name(text)
    if name is None:
        raise ConfigError(f"{text} is no name on the hub, such as org/model or org/model:Q4_K_M")
    try:
        found = ask_hub(name.repo, revision, files_metadata=True)
    except NotOnHub as error:
        raise NotOnHub(f"{name.repo} is not to be found: {error}") from error
    siblings = {each.rfilename: each for each in found.siblings or ()}
    files = []
    for needed in needed_files(list(siblings), name):
        if needed not in siblings:
            raise ConfigError(f"{name.repo} lacks {needed}, a part of a split file")
        each = siblings[needed]
        files.append(HubFile(needed, each.size or 0, None if each.lfs is None else each.lfs.sha256))
    return HubModel(name, revision, tuple(files))


def needed_files(files: Sequence[str], name: HubName) -> tuple[str, ...]:
    """Which of a repository's files a model needs. Raises ConfigError where it has none that can be served."""
    gguf = choose_gguf(files, name)
    if gguf:
        return (*_projector(files, gguf[0]), *gguf)  # this comes first: with its own file a model counts as installed
    top = [file for file in files if "/" not in file]
    weights = [file for file in top if fnmatch(file, FEWER)] or [file for file in top if fnmatch(file, SAFETENSORS)]
    if not weights or "config.json" not in top:
        advice = "it has neither a GGUF file nor config.json with safetensors"
        if "config.json" in top and any(fnmatch(file, pattern) for file in top for pattern in PICKLES):
            advice = "its weights are pickles, which run code as they are read, and it has no safetensors"
        raise ConfigError(f"{name.repo} cannot be served: {advice}")
    return (*(file for file in top if any(fnmatch(file, pattern) for pattern in SMALL)), *weights)


def _projector(files: Sequence[str], gguf: str) -> tuple[str, ...]:
    """The file with which the model sees; none where it cannot be told which that is."""
    try:
        projector = choose_projector(files, gguf)
    except ConfigError:
        return ()
    return () if projector is None else (projector,)
