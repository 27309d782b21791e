"""Kernels that this checkout has compiled, for another copy of its sources: compiling takes a minute."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from numba.core.caching import UserProvidedCacheLocator

from decoding.core.kernel_cache import PACKAGE, VARIABLE, completed_name, folder_name, is_complete


def lend_kernels(package: Path, base: Path) -> None:
    """Put them where `package` looks with the cache folder `base`, if its sources are the same.

    Numba files kernels by the paths of their sources, and older versions by their times too.
    """
    name = folder_name(package)
    if name != folder_name(PACKAGE):
        return
    for source in PACKAGE.rglob("*.py"):
        copy = package / source.relative_to(PACKAGE)
        if copy.is_file():
            shutil.copystat(source, copy)
    if is_complete():
        (base / name).mkdir(parents=True, exist_ok=True)
        (base / name / completed_name(package)).touch()
    for room in {source.parent for source in PACKAGE.rglob("*.py")}:
        kernels = Path(os.environ[VARIABLE]) / _folder_of(room)
        if kernels.is_dir():
            shutil.copytree(kernels, base / name / _folder_of(package / room.relative_to(PACKAGE)))


def _folder_of(room: Path) -> str:
    name: str = UserProvidedCacheLocator.get_suitable_cache_subpath(str(room / "any.py"))
    return name
