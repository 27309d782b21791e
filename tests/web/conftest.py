"""The page in a real Chromium, served by the real server with the bundled model.

Every test ends without a complaint on the browser's console; what a test provokes it names in `visitor.expects`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from tests.programs import program
from tests.server.servers import RunningServer, make_model_folder, running_server
from tests.web.visitor import Visitor

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
KEY = "let-me-in"
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They are slow tests: a browser is quicker than a reply only where it has a core to itself, and Playwright's event
    loop is in the way of tests that run in the same process later."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def real() -> Iterator[RunningServer]:
    with running_server(ServerSettings(drain_seconds=2), WORKER_COMMAND) as server:
        yield server


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The scripted worker, a model without a chat template, and a key: what the bundled model does not show."""
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy", chat_template=None)
    with running_server(ServerSettings(model=str(folder), drain_seconds=2, api_keys=KEY), state="") as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = program("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser, locked: RunningServer) -> Iterator[Page]:
    """A page whose modules are asked; what it shows does not matter, so one serves a file of tests."""
    page = browser.new_page()
    page.goto(locked.url)
    yield page
    page.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """visit(server, path="/", **context): the page in a browser profile of its own."""
    visitors: list[Visitor] = []
    with ExitStack() as contexts:

        def open_page(server: RunningServer, path: str = "/", **options: Any) -> Visitor:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
            contexts.callback(context.close)
            visitors.append(Visitor(context.new_page()))
            visitors[-1].page.goto(server.url + path)
            return visitors[-1]

        yield open_page
        for visitor in visitors:
            visitor.check()


@pytest.fixture
def visitor(visit: Callable[..., Visitor], real: RunningServer) -> Visitor:
    """Somebody on the page of the real server, its engine ready."""
    found = visit(real)
    found.wait_until_ready()
    return found
