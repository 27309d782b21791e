"""Names of models on the hub, and what the hub's cache has of them: org/model, or org/model:Q4_K_M for one GGUF file.

Asks no network. A name without a quantisation means the repository's safetensors, or else its only GGUF file, or that
of `USUAL`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decoding.errors import ConfigError, listed
from decoding.model.files.gguf_file import SUFFIX, part_names

USUAL = "Q4_K_M"  # where none is asked for, as others have it
NAME = re.compile(r"(?P<repo>[\w.-]{1,96}(/[\w.-]{1,96})?)(:(?P<quantization>[\w.-]{1,96}))?", re.ASCII)
QUANTIZATION = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q|TQ|MXFP)\d\w*|BF16|F16|FP16|F32|FP32)$", re.IGNORECASE)
PART = re.compile(r"-\d{5}-of-\d{5}$")
PROJECTOR = "mmproj"  # in the name of a file with a tower and its projector
PROJECTOR_KINDS = ("F16", "BF16", "F32", "Q8_0")  # of one projector's files, the first of these is meant
REPO = "models--"  # begins the name of a repository's folder in the cache
NAMED = 30  # quantisations that a sentence names


@dataclass(frozen=True, slots=True)
class HubName:
    """quantization: as the names of files have it, in capitals; None: not asked for."""

    repo: str
    quantization: str | None = None

    def __str__(self) -> str:
        return self.repo if self.quantization is None else f"{self.repo}:{self.quantization}"


def hub_name(text: str) -> HubName | None:
    """The name that a text is; None where it cannot be one."""
    found = NAME.fullmatch(text)
    if found is None:
        return None
    quantization = found["quantization"]
    return HubName(found["repo"], None if quantization is None else quantization.upper())


def quantization_of(file: str) -> str:
    """Which quantisation a GGUF file has by its name, in capitals; the name itself where it says none."""
    stem = PART.sub("", file.removesuffix(SUFFIX))
    found = QUANTIZATION.search(stem)
    return stem if found is None else found[1].upper()


def is_projector(file: str) -> bool:
    """Whether a GGUF file has a tower and its projector, by its name."""
    return PROJECTOR in file.rpartition("/")[2].lower()


def choose_projector(files: Iterable[str], gguf: str) -> str | None:
    """The projector's file that belongs to the model's, of files of one repository or folder: beside it, or else where
    the others of the repository begin. Raises ConfigError, naming them, where there are several."""
    own = gguf.rpartition("/")[0]
    found = [file for file in files if file.endswith(SUFFIX) and is_projector(file)]
    beside = [file for file in found if file.rpartition("/")[0] == own] or [file for file in found if "/" not in file]
    if len({QUANTIZATION.sub("", file.removesuffix(SUFFIX)) for file in beside}) > 1:
        raise ConfigError(f"several projectors (mmproj) are beside its GGUF file: {listed(sorted(beside), NAMED)}")
    by_kind = {quantization_of(file): file for file in sorted(beside)}
    first = next((by_kind[kind] for kind in PROJECTOR_KINDS if kind in by_kind), None)
    return first or next(iter(by_kind.values()), None)


def gguf_files(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The GGUF files among these by quantisation, each with all its parts, of which some may be missing. Where models
    of several names have one quantisation they have their own names; of a file that is there whole and split the whole
    one is meant."""
    firsts = {part_names(file)[0] for file in files if file.endswith(SUFFIX) and not is_projector(file)}
    by_stem = {PART.sub("", first.removesuffix(SUFFIX)): first for first in sorted(firsts, key=len, reverse=True)}
    kinds = Counter(quantization_of(stem) for stem in by_stem)
    names = {stem: kind if kinds[kind := quantization_of(stem)] == 1 else stem for stem in by_stem}
    return {names[stem]: part_names(by_stem[stem]) for stem in sorted(by_stem)}


def choose_gguf(files: Sequence[str], name: HubName) -> tuple[str, ...]:
    """The GGUF file of a repository with these files that the name means, with all its parts; empty where it means
    others. Raises ConfigError, which lists the quantisations, where it has none like that or several."""
    found = gguf_files(files)
    listing = listed(found.keys(), NAMED) or "no GGUF file"
    if name.quantization is not None:
        wanted = {each.upper(): each for each in found}.get(name.quantization)
        if wanted is None:
            raise ConfigError(f"{name.repo} has no quantisation {name.quantization}: it has {listing}")
        return found[wanted]
    if not found or ("config.json" in files and any(file.endswith(".safetensors") for file in files)):
        return ()
    if len(found) > 1 and USUAL not in found:
        raise ConfigError(f"{name.repo} has several quantisations: choose one, as {name.repo}:NAME, of {listing}")
    return found.get(USUAL) or next(iter(found.values()))


def repo_folder(repo: str) -> Path:
    """Where the cache has a repository, or would have it."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE, f"{REPO}{repo.replace('/', '--')}")


def cached_repos() -> list[str]:
    """The repositories that the cache has something of."""
    return [path.name.removeprefix(REPO).replace("--", "/") for path in repo_folder("").parent.glob(f"{REPO}*")]


def cached_snapshot(repo: str, revision: str | None) -> Path | None:
    """The folder with what the cache has of a repository at a branch, tag or commit; None where it has nothing."""
    folder = repo_folder(repo)
    reference = folder / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision or ""
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def cached_revisions(repo: str) -> list[str | None]:
    """The revisions that the cache has something of, by name, or by commit where no name is kept; None is the one that
    is meant where none is named."""
    folder = repo_folder(repo)
    names = {path.read_text().strip(): path for path in sorted((folder / "refs").rglob("*")) if path.is_file()}
    usual = cached_snapshot(repo, None)
    others = sorted(path.name for path in (folder / "snapshots").glob("*") if path != usual)
    named = [names[each].relative_to(folder / "refs").as_posix() if each in names else each for each in others]
    return [*([None] if usual else []), *named]


def cached_gguf(name: HubName, revision: str | None) -> tuple[Path, ...]:
    """The GGUF file that the name means with all its parts, as far as the cache has it whole; else empty."""
    snapshot = cached_snapshot(name.repo, revision)
    if snapshot is None:
        return ()
    files = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    if name.quantization is not None and name.quantization not in {each.upper() for each in gguf_files(files)}:
        return ()
    paths = tuple(snapshot / each for each in choose_gguf(files, name))
    return paths if all(path.is_file() for path in paths) else ()
