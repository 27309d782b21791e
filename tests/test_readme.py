"""README and documentation are true: links lead somewhere, the map has every room, speed-ups are those of the file."""

import re
from pathlib import Path

import pytest

from decoding.bench.tables.report import replace_section
from server.bench.real.figures import read_runs
from server.bench.real.pages import PAGES, RUNS, SECTION

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:server|decoding|deploy|docs|tests)/[\w./-]*)`", README + ARCHITECTURE)))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_readme_and_architecture_name_is_there(path: str) -> None:
    found = ROOT / path
    assert found.is_dir() if path.endswith("/") else found.is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_are_there(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), link
        assert not heading or heading in headings(target.read_text()), link


def headings(page: str) -> set[str]:
    """As GitHub names them: lower case, spaces as hyphens, punctuation left out."""
    found = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def test_every_room_has_its_place_on_the_map() -> None:
    assert len(PATHS) > 30
    rooms = {
        f"{half}/{path.name}/" for half in ("server", "decoding") for path in (ROOT / half).iterdir() if path.is_dir()
    }
    assert {room for room in rooms if "__pycache__" not in room} <= set(PATHS)


def test_a_request_lives_in_eight_steps_with_a_file_for_each() -> None:
    life = ARCHITECTURE.split("## The life of one chat request")[1].split("\n## ")[0]
    steps = re.findall(r"^(\d)\. (.*?)(?=^\d\. |\Z)", life, flags=re.MULTILINE | re.DOTALL)
    assert [number for number, _ in steps] == list("12345678")
    assert all(re.search(r"`[\w/]+\.py`", text) for _, text in steps)


def test_the_readme_is_read_in_ten_minutes() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("name", PAGES)
def test_tables_of_speedups_are_those_of_their_file(name: str) -> None:
    runs, page = read_runs(ROOT / RUNS), (ROOT / name).read_text()
    assert runs
    assert replace_section(page, SECTION, PAGES[name](runs)) == page
