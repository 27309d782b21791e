"""A visitor of the page: what tests do on it and read off it. Knows the page's words and parts, asserts little."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import ConsoleMessage, Locator, Page, Request, Route, expect

PATIENCE = 60_000  # milliseconds; machines that test are busy


class Visitor:
    """expects: patterns of console messages that the test provokes.

    asked: what the page asked to be generated, in order; replies: what came, where `keep_replies` was called before.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.expects: list[str] = []
        self.complaints: list[str] = []
        self.asked: list[Request] = []
        self.replies: list[str] = []
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _on_request(self, request: Request) -> None:
        if request.url.endswith("/completions"):
            self.asked.append(request)

    def keep_replies(self) -> None:
        """From now on the page gets each reply in one piece, and `replies` keeps it."""

        def keep(route: Route) -> None:
            response = route.fetch()
            self.replies.append(response.text())
            route.fulfill(response=response)

        self.page.route("**/completions", keep)

    def body(self, number: int = -1) -> dict[str, Any]:
        """What the page asked."""
        asked: dict[str, Any] = self.asked[number].post_data_json
        return asked

    def check(self) -> None:
        """Fails for a complaint nobody expected, and for an expected one that did not come."""
        surprises = [each for each in self.complaints if not any(re.search(known, each) for known in self.expects)]
        assert not surprises, surprises
        for known in self.expects:
            assert any(re.search(known, each) for each in self.complaints), f"nobody complained of {known}"

    def wait_until_ready(self) -> None:
        expect(self.page.locator('#engine[data-state="ready"]')).to_be_visible()

    def open_tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def set(self, name: str, value: str) -> None:
        """A field of the settings panel."""
        if not self.page.locator("#settings").is_visible():
            self.page.locator("#settings-toggle").click()
        self.page.locator(f'#settings [name="{name}"]').fill(value)

    def say(self, text: str) -> None:
        """Chat, up to the end of the reply."""
        before = self.page.locator(".message.assistant").count()
        self.page.get_by_label("Your message").fill(text)
        self.page.keyboard.press("Enter")
        expect(self.page.locator(".message.assistant")).to_have_count(before + 1)
        expect(self.reply.locator(".end")).not_to_be_empty()

    @property
    def reply(self) -> Locator:
        """The last reply of the chat."""
        return self.page.locator(".message.assistant").last

    def shown_tokens(self, place: str) -> list[tuple[str, str, int]]:
        """(text, source, index) of the token spans inside `place`."""
        script = "spans => spans.map(span => [span.textContent, span.dataset.source, Number(span.dataset.token)])"
        return [
            (text, source, index) for text, source, index in self.page.locator(f"{place} .token").evaluate_all(script)
        ]

    def traced_tokens(self, reply: int = -1) -> list[dict[str, Any]]:
        """The tokens the server told of in a streamed reply, in order."""
        lines = [line[6:] for line in self.replies[reply].splitlines() if line.startswith("data: {")]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        return [token for choice in choices if "trace" in choice for token in choice["trace"]["tokens"]]

    def scrolls_sideways(self) -> bool:
        wide: bool = self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        return wide
