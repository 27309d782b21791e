"""The models in the hub's cache: listed, shown and removed by name. Asks no network.

Invariant: what is listed can be served without a network; a repository without its weights is not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from decoding.errors import ConfigError, listed
from decoding.model.files.gguf_file import read_gguf, text_of
from decoding.model.files.gguf_place import projector_of
from decoding.model.files.hub_cache import (
    USUAL,
    HubName,
    cached_gguf,
    cached_repos,
    cached_revisions,
    cached_snapshot,
    gguf_files,
    hub_name,
    repo_folder,
)

INDEX, ONE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """kind: gguf or safetensors. paths: of its weights. num_bytes: of these. changed: when they came, in seconds since
    1970. digest: the SHA-256 of the first of them, as the hub has it. revision: None for the usual one."""

    name: HubName
    revision: str | None
    kind: str
    paths: tuple[Path, ...]
    num_bytes: int
    changed: float
    digest: str

    def __str__(self) -> str:
        return shown(self.name, self.revision)


def shown(name: HubName | str, revision: str | None) -> str:
    """As commands take it."""
    return str(name) if revision is None else f"{name} --revision {revision}"


def installed_models() -> list[InstalledModel]:
    """What is in the cache, the newest first. Blocks."""
    revisions = [(repo, revision) for repo in cached_repos() for revision in cached_revisions(repo)]
    found = [model for repo, revision in revisions for model in _models_of(repo, revision)]
    return sorted(found, key=lambda model: (-model.changed, str(model)))


def is_installed(text: str, revision: str | None = None) -> bool:
    """Whether a name of the hub can be served from the cache."""
    name = hub_name(text)
    if name is None:
        return False
    return bool(cached_gguf(name, revision) or (name.quantization is None and _safetensors(name.repo, revision)))


def find_installed(text: str, revision: str | None = None) -> InstalledModel:
    """The model that a name means, at a revision. Raises ConfigError, which names those of its repository that there
    are."""
    name = hub_name(text)
    models = {} if name is None else {str(model.name): model for model in _models_of(name.repo, revision)}
    found = models.get(str(name))
    if found is None and name is not None and name.quantization is None:
        found = models.get(f"{name.repo}:{USUAL}") if len(models) > 1 else next(iter(models.values()), None)
    if found is None:
        others = f"here is {listed(models)}" if models else "gander list names what is"
        raise ConfigError(f"{shown(text, revision)} is not here: {others}")
    return found


def remove(text: str, revision: str | None = None) -> int:
    """Remove a model; returns the bytes that this freed. Other quantisations and revisions of its repository stay.
    Raises ConfigError where it is not there."""
    model = find_installed(text, revision)
    repo = model.name.repo
    if sum(len(_models_of(repo, each)) for each in cached_revisions(repo)) == 1:
        return _remove_repo(repo)
    freed = 0
    for path in model.paths:
        blob = path.resolve()
        path.unlink()
        if blob.parent.name == "blobs" and not any(each.resolve() == blob for each in _files_of(repo)):
            freed += blob.stat().st_size
            blob.unlink()
    return freed


def details(text: str, revision: str | None = None) -> Mapping[str, Any]:
    """What the files of a model say of it: architecture, context length, quantisation. Raises ConfigError."""
    model = find_installed(text, revision)
    said: dict[str, Any] = {"name": str(model.name), "format": model.kind, "bytes": model.num_bytes}
    if model.kind == "gguf":
        file = read_gguf(model.paths)
        architecture = text_of(file.metadata, "general.architecture")
        said |= {"architecture": architecture, "quantization": model.name.quantization}
        with suppress(ConfigError):  # it cannot be told which
            projector = projector_of(model.paths, None)
            said |= {} if projector is None else {"projector": projector.name}
        said["parameters"] = sum(prod(tensor.shape) for tensor in file.tensors.values())
        keys = {"context_length": f"{architecture}.context_length", "license": "general.license"}
        said |= {name: file.metadata[key] for name, key in keys.items() if key in file.metadata}
    else:
        config = json.loads((model.paths[0].parent / "config.json").read_text())
        keys = {"architecture": "model_type", "context_length": "max_position_embeddings", "dtype": "torch_dtype"}
        said |= {name: config[key] for name, key in keys.items() if key in config}
    return said | {"path": str(model.paths[0])}


def _models_of(repo: str, revision: str | None) -> list[InstalledModel]:
    snapshot = cached_snapshot(repo, revision)
    if snapshot is None:
        return []
    files = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    found = [
        _installed(HubName(repo, quantization.upper()), revision, "gguf", tuple(snapshot / part for part in parts))
        for quantization, parts in gguf_files(files).items()
        if all(part in files for part in parts)
    ]
    weights = _safetensors(repo, revision)
    return [*found, *([_installed(HubName(repo), revision, "safetensors", weights)] if weights else ())]


def _installed(name: HubName, revision: str | None, kind: str, paths: tuple[Path, ...]) -> InstalledModel:
    stats = [path.stat() for path in paths]
    num_bytes, changed = sum(each.st_size for each in stats), max(each.st_mtime for each in stats)
    return InstalledModel(name, revision, kind, paths, num_bytes, changed, paths[0].resolve().name)


def _safetensors(repo: str, revision: str | None) -> tuple[Path, ...]:
    """The weights of a repository, if the cache has all of them, and config.json."""
    snapshot = cached_snapshot(repo, revision)
    if snapshot is None or not (snapshot / "config.json").is_file():
        return ()
    if not (snapshot / INDEX).is_file():
        return tuple(path for path in (snapshot / ONE,) if path.is_file()) or tuple(snapshot.glob("*.safetensors"))
    try:
        names = sorted(set(json.loads((snapshot / INDEX).read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
    paths = tuple(snapshot / name for name in names)
    return paths if all(path.is_file() for path in paths) else ()


def _files_of(repo: str) -> Iterator[Path]:
    """The files of all revisions."""
    return (path for path in (repo_folder(repo) / "snapshots").rglob("*") if path.is_symlink())


def _remove_repo(repo: str) -> int:
    """Remove all that the cache has of a repository, what broken pulls left included."""
    folder = repo_folder(repo)
    freed = sum(path.stat().st_size for path in (folder / "blobs").iterdir())
    shutil.rmtree(folder)
    return freed
