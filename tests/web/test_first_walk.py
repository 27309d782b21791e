"""What somebody new does: clone, `make serve`, open the page, press Race. Nothing asks them anything.

The machine is prepared: the clone uses this checkout's environment and what it has compiled.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.kernels import lend_kernels

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
PATIENCE = 300  # seconds for all of it; a prepared machine that is idle takes a tenth
ADDRESS = re.compile(r"Open (http://127\.0\.0\.1:\d+) and press Race")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "gander"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, timeout=60)
    lend_kernels(folder / "decoding", tmp_path / "kernels")
    return folder


@pytest.fixture
def address(clone: Path) -> Iterator[str]:
    """Of `make serve` in the clone, whose processes end with the test."""
    prepared = Path(sys.prefix)
    if not (prepared / ".installed").exists():
        pytest.skip("this environment was not made by make, so make would install it anew")
    command = ["make", "--assume-old=pyproject.toml", "--assume-old=constraints.txt", "serve", f"VENV={prepared}"]
    log = clone.parent / "serve.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GANDER_", "MAKE"))}
    with log.open("wb") as output:
        serving = subprocess.Popen(
            [*command, "ARGS=--port 0"],
            cwd=clone,
            env=environment | {"PYTHONPATH": str(clone), "NUMBA_CACHE_DIR": str(clone.parent / "kernels")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield wait_for_address(serving, log)
    finally:
        os.killpg(serving.pid, signal.SIGTERM)
        try:
            serving.wait(30)
        finally:
            if serving.returncode is None:
                os.killpg(serving.pid, signal.SIGKILL)


def wait_for_address(serving: "subprocess.Popen[bytes]", log: Path) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and serving.poll() is None:
        found = ADDRESS.search(log.read_text())
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"make serve did not say where the page is: {log.read_text()[-2000:]}")


def test_from_a_clone_to_the_verdict_of_a_race(address: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(address)
    page.get_by_role("button", name="Race", exact=True).click(timeout=PATIENCE * 1000)
    expect(page.locator(".verdict strong")).to_contain_text("Same text", timeout=PATIENCE * 1000)
    page.close()
