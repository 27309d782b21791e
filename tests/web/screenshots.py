"""The pictures in docs/: `python -m tests.web.screenshots`, on a machine that is otherwise idle. Not a test.

Serves the bundled model, races and chats in Chromium, and writes docs/page-race.png and docs/page-chat.png.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from tests.server.servers import running_server
from tests.web.conftest import FLAGS

DOCS = Path(__file__).parents[2] / "docs"
PATIENCE = 60_000  # milliseconds


def race(page: Page) -> None:
    page.get_by_role("button", name="A Python class").click()
    page.get_by_role("button", name="Race", exact=True).click()
    expect(page.locator(".verdict")).to_have_attribute("data-state", "same", timeout=PATIENCE)


def chat(page: Page) -> None:
    page.get_by_role("tab", name="Chat").click()
    for number, text in enumerate(["What is Gander?", "Tell me a story about a bear."], 1):
        page.get_by_label("Your message").fill(text)
        page.keyboard.press("Enter")
        expect(page.locator(".message.assistant .end").nth(number - 1)).not_to_be_empty(timeout=PATIENCE)
    choose_a_tree_with_branches(page)


def choose_a_tree_with_branches(page: Page) -> None:
    """Clicks through the tokens of the last reply until the tree of one says something and is seen whole."""
    tree = page.locator("#chat .tree-scroll")
    for token in page.locator(".message.assistant").last.locator('.token[data-source="draft_model"]').all()[10:]:
        token.click()
        is_whole = tree.evaluate("it => it.scrollWidth <= it.clientWidth") if tree.count() else False
        if is_whole and tree.locator(".node.rejected").count() >= 2:
            return


def main() -> None:
    path = shutil.which("chromium")
    with running_server(ServerSettings(drain_seconds=2), WORKER_COMMAND) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for name, height, act in (("race", 1340, race), ("chat", 760, chat)):
            page = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
            page.goto(server.url)
            act(page)
            page.wait_for_timeout(300)  # for the last frame of the charts
            page.screenshot(path=DOCS / f"page-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
