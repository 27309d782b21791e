"""What the `gander` command runs first: packages older than Gander needs are refused before anything is imported.

Knows what pyproject.toml asks for, by the metadata of the installed package. Imports nothing that could itself be old.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.version import Version

PACKAGE = "gander"


def main() -> None:
    """Entry point of the console script. Ends with status 1 and one sentence where a package is missing or too old."""
    refusal = refusal_of(requirements_of(PACKAGE), version_of)
    if refusal is not None:
        sys.exit(f"Stopped: {refusal}")
    from server.cli import main as run

    run()


def requirements_of(package: str) -> list[Requirement]:
    """What an installed package needs on this machine, without its extras; nothing where it runs from its sources."""
    try:
        found = map(Requirement, requires(package) or ())
    except PackageNotFoundError:
        return []
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def refusal_of(needed: Iterable[Requirement], installed: Callable[[str], str | None]) -> str | None:
    """The sentence that names each requirement which is not met and the command that installs them; None if all are.

    A build before or after a release counts as that release: vendors' builds of torch have such versions.
    """
    unmet: dict[str, str] = {}
    for each in needed:
        found = installed(each.name)
        if found is None:
            unmet[f"{each.name}{each.specifier}"] = "none is installed"
        elif not each.specifier.contains(Version(found).base_version):
            unmet[f"{each.name}{each.specifier}"] = f"{found} is installed"
    if not unmet:
        return None
    listed = ", ".join(f"{needed} ({state})" for needed, state in unmet.items())
    command = shlex.join([sys.executable, "-m", "pip", "install", "-U", *unmet])
    return f"Gander needs {listed}; this brings what it needs: {command}"
