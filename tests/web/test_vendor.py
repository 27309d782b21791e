"""The libraries of the page are what their README says, byte for byte."""

import hashlib
import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "server" / "web" / "vendor"


def test_every_file_has_the_sum_the_readme_gives() -> None:
    readme = (FOLDER / "README.md").read_text()
    sums = dict(re.findall(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|$", readme, re.MULTILINE))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir()}
    found.pop("README.md")
    assert found == sums
    assert {name.removesuffix(".js") for name in sums if name.endswith(".js")} == {
        name.removesuffix(".LICENSE.txt") for name in sums if name.endswith(".LICENSE.txt")
    }
