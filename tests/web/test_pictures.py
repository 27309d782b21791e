"""Pictures on the page: by button, drop and paste; shown, sent, kept, raced on; made smaller where they are large."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from tests.seeing import picture, tiny_seeing
from tests.server.servers import RunningServer, running_server
from tests.web.test_race import race
from tests.web.visitor import Visitor, expect

TRANSFER = """bytes => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], "a.png", { type: "image/png" }));
  return transfer;
}"""
PASTE = """(place, transfer) =>
  place.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true }))"""


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models") / "seeing"
    tiny_seeing("idefics3", folder)
    settings = ServerSettings(model=str(folder), dtype="float32", drain_seconds=2, kv_slots=8192)
    with running_server(settings, WORKER_COMMAND) as server:
        yield server


@pytest.fixture
def viewer(visit: Callable[..., Visitor], seeing: RunningServer) -> Visitor:
    found = visit(seeing)
    found.wait_until_ready()
    found.set("maxTokens", "24")
    return found


def png(image: Image.Image) -> bytes:
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


FIRST, SECOND = png(picture(1)), png(picture(2))


def choose(visitor: Visitor, view: str, *files: bytes) -> None:
    """Add pictures as the button does, whose dialog belongs to the system."""
    button = visitor.page.locator(f'{view} [data-part="add-picture"]')
    with visitor.page.expect_file_chooser() as chooser:
        button.click()
    chooser.value.set_files([{"name": "a.png", "mimeType": "image/png", "buffer": each} for each in files])


def sent(message: dict[str, Any]) -> list[bytes]:
    """The files of a message's pictures."""
    parts = [part for part in message["content"] if part["type"] == "image_url"]
    return [b64decode(part["image_url"]["url"].partition(",")[2]) for part in parts]


def test_a_picture_is_chosen_sent_shown_and_kept(viewer: Visitor) -> None:
    page = viewer.page
    viewer.open_tab("Chat")
    choose(viewer, "#chat", FIRST)
    expect(page.locator("#chat .composer .picture img")).to_have_count(1)
    viewer.say("What is this?")
    expect(page.locator("#chat .composer .picture")).to_have_count(0)
    assert sent(viewer.body()["messages"][0]) == [FIRST]
    assert viewer.body()["messages"][0]["content"][1] == {"type": "text", "text": "What is this?"}
    page.reload()
    viewer.wait_until_ready()
    shown = page.locator(".message.user img")
    expect(shown).to_have_count(1)
    assert shown.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [40, 31]
    viewer.say("And now?")
    assert sent(viewer.body()["messages"][0]) == [FIRST]
    assert viewer.body()["messages"][2]["content"] == "And now?"


def test_pictures_are_dropped_and_pasted_and_taken_away_again(viewer: Visitor) -> None:
    page = viewer.page
    viewer.open_tab("Chat")
    first, second = (page.evaluate_handle(TRANSFER, list(each)) for each in (FIRST, SECOND))
    page.locator("#chat .composer").dispatch_event("drop", {"dataTransfer": first})
    shown = page.locator("#chat .composer .picture img")
    expect(shown).to_have_count(1)
    page.locator("#chat-prompt").evaluate(PASTE, second)
    expect(shown).to_have_count(2)
    viewer.button("Remove picture 1").click()
    expect(shown).to_have_count(1)
    viewer.say("What?")
    assert sent(viewer.body()["messages"][0]) == [SECOND]


def test_a_large_picture_is_made_smaller(viewer: Visitor) -> None:
    viewer.open_tab("Chat")
    choose(viewer, "#chat", png(picture(3, 2000, 1000)))
    expect(viewer.page.locator("#chat .composer .picture")).to_have_count(1)
    viewer.say("What?")
    (content,) = sent(viewer.body()["messages"][0])
    image = Image.open(BytesIO(content))
    assert (image.format, image.size) == ("JPEG", (1536, 768))


def test_what_is_no_picture_is_refused_with_a_sentence(viewer: Visitor) -> None:
    viewer.open_tab("Chat")
    choose(viewer, "#chat", b"no picture", FIRST)
    expect(viewer.page.locator("#chat .notice")).to_have_text("That is no picture that this browser can read.")
    expect(viewer.page.locator("#chat .composer .picture")).to_have_count(1)


def test_a_race_on_a_picture_ends_equal(viewer: Visitor) -> None:
    """The model looks at the picture before, since the second run would find what the first has seen."""
    page = viewer.page
    viewer.set("maxNodes", "16")
    page.locator("#race-prompt").fill("What is this, this, this?")
    choose(viewer, "#race", FIRST)
    expect(page.get_by_label("answer it in chat")).to_be_checked()
    expect(page.get_by_label("continue it")).to_be_disabled()
    race(viewer)
    expect(page.locator(".verdict strong")).to_contain_text("Same text")
    looked, plain, drafted = (viewer.body(number) for number in range(3))
    assert sent(plain["messages"][0]) == [FIRST]
    assert looked["messages"] == plain["messages"] == drafted["messages"]
    assert [each["max_tokens"] for each in (looked, plain, drafted)] == [1, 24, 24]
    assert [each["speculation"]["method"] for each in (looked, plain, drafted)] == ["none", "none", "auto"]
    page.get_by_role("button", name="A word problem").click()
    expect(page.locator("#race .picture")).to_have_count(0)
    expect(page.get_by_label("continue it")).to_be_checked()


def test_a_model_of_text_is_offered_no_pictures(visitor: Visitor) -> None:
    visitor.open_tab("Chat")
    expect(visitor.page.locator('#chat [data-part="add-picture"]')).to_be_hidden()
    transfer = visitor.page.evaluate_handle(TRANSFER, list(FIRST))
    visitor.page.locator("#chat .composer").dispatch_event("drop", {"dataTransfer": transfer})
    expect(visitor.page.locator("#chat .notice")).to_have_text("This model takes no pictures.")
