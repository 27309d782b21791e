"""The readme's map is true: every path it names is there, and no room is missing from it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:server|decoding|deploy|docs|tests)/[\w./-]*)`", README)))
LINKS = sorted(set(re.findall(r"\]\(([^)#:]+)\)", README)))


@pytest.mark.parametrize("path", [*PATHS, *LINKS])
def test_a_path_that_the_readme_names_is_there(path: str) -> None:
    found = ROOT / path
    assert found.is_dir() if path.endswith("/") else found.is_file()


def test_every_room_has_its_place_on_the_map() -> None:
    assert len(PATHS) > 30
    rooms = {
        f"{half}/{path.name}/" for half in ("server", "decoding") for path in (ROOT / half).iterdir() if path.is_dir()
    }
    assert {room for room in rooms if "__pycache__" not in room} <= set(PATHS)


def test_a_request_lives_in_eight_steps_with_a_file_for_each() -> None:
    life = README.split("The life of one chat request:")[1]
    steps = re.findall(r"^(\d)\. (.*?)(?=^\d\. |^`deploy)", life, flags=re.MULTILINE | re.DOTALL)
    assert [number for number, _ in steps] == list("12345678")
    assert all(re.search(r"`[\w/]+\.py`", text) for _, text in steps)
