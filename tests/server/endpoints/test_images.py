"""Pictures over HTTP: each API's form of them, what transformers' own processor and model say, and refusals."""

from __future__ import annotations

import os
import signal
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image
from transformers import PreTrainedModel

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from server.prompts.images.fetching import ImageFetcher, PublicBackend
from tests.seeing import picture, processor_of, tiny_seeing
from tests.server.prompts.images.files import To, answering, serving_files
from tests.server.servers import RunningServer, running_server, wait_until

KIND = "idefics3"  # which cuts large pictures into tiles
NUM_TOKENS = 16
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Seeing:
    server: RunningServer
    own: PreTrainedModel
    kind: str = KIND

    def chat(self, *parts: Any, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": list(parts)}]
        fields = GREEDY | {"max_completion_tokens": NUM_TOKENS, "logprobs": True} | body
        return self.server.http.post("/v1/chat/completions", json={"messages": messages} | fields)

    def said(self, *parts: Any, **body: Any) -> list[bytes]:
        """The bytes of each token of the reply."""
        response = self.chat(*parts, **body)
        assert response.status_code == 200, response.text
        return [bytes(token["bytes"]) for token in response.json()["choices"][0]["logprobs"]["content"]]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    folder = tmp_path_factory.mktemp("models") / "seeing"
    own = tiny_seeing(KIND, folder)
    settings = ServerSettings(
        model=str(folder),
        dtype="float32",
        drain_seconds=2,
        kv_slots=8192,
        max_images=3,
        max_image_pixels=20_000,
        image_urls="pictures.example",
    )
    with running_server(settings, WORKER_COMMAND) as server:
        yield Seeing(server, own)


@pytest.fixture(scope="module", params=["qwen2_vl", "gemma3"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    """Whose pictures have positions in height and width, or see both ways."""
    folder = tmp_path_factory.mktemp("models") / "other"
    own = tiny_seeing(request.param, folder)
    settings = ServerSettings(model=str(folder), dtype="float32", drain_seconds=2, kv_slots=8192)
    with running_server(settings, WORKER_COMMAND) as server:
        yield Seeing(server, own, request.param)


def url_of(image: Image.Image, form: str = "PNG") -> str:
    content = BytesIO()
    image.save(content, form)
    return f"data:image/{form.lower()};base64,{b64encode(content.getvalue()).decode()}"


def shown(image: Image.Image, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(image)} | fields}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


FIRST, SECOND = picture(1, 90, 60), picture(2)
PARTS = (text("What is in "), shown(FIRST), text(" and in "), shown(SECOND), text(" here?"))


def expected(seeing: Seeing, images: list[Image.Image], content: str) -> tuple[list[int], list[bytes]]:
    """The prompt of transformers' processor, and of its model's reply the bytes of tokens that are told, which special
    ones are not. content: with IMAGE for each picture."""
    processor = processor_of(seeing.kind)
    prompt = f"<s>user: {content.replace('IMAGE', processor.image_token)}</s><s>assistant: "
    inputs = processor(images=[images], text=[prompt], return_tensors="pt")
    with torch.inference_mode():
        tokens = seeing.own.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)[
            0
        ].tolist()
    prompt_ids = inputs["input_ids"][0].tolist()
    names, special = processor.tokenizer, processor.tokenizer.all_special_ids
    return prompt_ids, [spelled(names, token) for token in tokens[len(prompt_ids) :] if token not in special]


def spelled(tokenizer: Any, token_id: int) -> bytes:
    letters = dict(zip(_LETTERS, _BYTES, strict=True))
    return bytes(letters[letter] for letter in tokenizer.convert_ids_to_tokens(token_id))


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = [*_PRINTABLE, *_OTHERS]
_LETTERS = [*map(chr, _PRINTABLE), *(chr(256 + number) for number in range(len(_OTHERS)))]


def test_prompt_and_reply_are_those_of_transformers(seeing: Seeing) -> None:
    check_prompt_and_reply(seeing)


def test_those_of_other_families_are_too(other: Seeing) -> None:
    check_prompt_and_reply(other)


def check_prompt_and_reply(seeing: Seeing) -> None:
    prompt, reply = expected(seeing, [FIRST, SECOND], "What is in IMAGE and in IMAGE here?")
    messages = [{"role": "user", "content": PARTS}]
    tokenized = seeing.server.http.post("/tokenize", json={"messages": messages}).json()
    assert tokenized["tokens"] == prompt
    response = seeing.chat(*PARTS)
    assert response.json()["usage"]["prompt_tokens"] == len(prompt)
    assert seeing.said(*PARTS) == reply
    sampled = {"temperature": 0.8, "seed": 3}
    plain = seeing.said(*PARTS, **sampled, speculation={"method": "none"})
    assert seeing.said(*PARTS, **sampled, speculation={"method": "lookup"}) == plain != reply


def test_other_apis_say_the_same(seeing: Seeing) -> None:
    chat = seeing.chat(*PARTS).json()
    content, prompt_tokens = chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"]
    items = [
        {"type": "input_text", "text": each["text"]}
        if each["type"] == "text"
        else {"type": "input_image", "image_url": each["image_url"]["url"], "detail": "auto"}
        for each in PARTS
    ]
    body = {"input": [{"role": "user", "content": items}], "max_output_tokens": NUM_TOKENS} | GREEDY
    response = seeing.server.http.post("/v1/responses", json=body).json()
    assert response["output"][0]["content"][0]["text"] == content
    assert response["usage"]["input_tokens"] == prompt_tokens
    listed = seeing.server.get(f"/v1/responses/{response['id']}/input_items").json()["data"][0]["content"]
    assert [part["type"] for part in listed] == ["input_text", "input_image"] * 2 + ["input_text"]
    again = {"input": "And now?", "previous_response_id": response["id"], "max_output_tokens": 4} | GREEDY
    assert seeing.server.http.post("/v1/responses", json=again).status_code == 200

    blocks = [
        each
        if each["type"] == "text"
        else {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data_of(each)}}
        for each in PARTS
    ]
    message = {"messages": [{"role": "user", "content": blocks}], "max_tokens": NUM_TOKENS} | GREEDY
    reply = seeing.server.http.post("/v1/messages", json=message).json()
    assert reply["content"][0]["text"] == content
    usage = reply["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt_tokens
    count = seeing.server.http.post("/v1/messages/count_tokens", json={"messages": message["messages"]}).json()
    assert count["input_tokens"] == prompt_tokens


def data_of(part: dict[str, Any]) -> str:
    url: str = part["image_url"]["url"]
    return url.partition(",")[2]


def test_ollamas_images_come_before_the_text(seeing: Seeing) -> None:
    images, model = [data_of(shown(each)) for each in (FIRST, SECOND)], seeing.server.model
    http, options = seeing.server.http, {"temperature": 0, "num_predict": NUM_TOKENS}
    said = seeing.chat(shown(FIRST), shown(SECOND), text("what?"), ignore_eos=False).json()
    message = {"role": "user", "content": "what?", "images": images}
    chat = {"model": model, "messages": [message], "options": options, "stream": False}
    generate = {"model": model, "prompt": "what?", "images": images, "options": options, "stream": False}
    replies = [http.post(f"/api/{name}", json=body).json() for name, body in (("chat", chat), ("generate", generate))]
    assert [replies[0]["message"]["content"], replies[1]["response"]] == [said["choices"][0]["message"]["content"]] * 2
    assert {each["prompt_eval_count"] for each in replies} == {said["usage"]["prompt_tokens"]}
    assert "vision" in http.post("/api/show", json={"model": model}).json()["capabilities"]
    broken = http.post("/api/generate", json=generate | {"images": ["AAAA"]})
    assert (broken.status_code, broken.json()["error"][:39]) == (400, "prompt: A picture's file is none of PNG")


def test_a_listed_hosts_picture_is_fetched(seeing: Seeing, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b64decode(data_of(shown(FIRST))))
    with serving_files(tmp_path) as port:
        seeing.server.service.fetcher = ImageFetcher(PublicBackend(answering("1.1.1.1"), To(port)))
        part = {"type": "image_url", "image_url": {"url": "http://pictures.example/a.png"}}
        assert seeing.said(part, text("what?")) == seeing.said(shown(FIRST), text("what?"))
        source = {"type": "url", "url": "http://pictures.example/b.png"}
        body = {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}], "max_tokens": 2}
        missing = seeing.server.http.post("/v1/messages", json=body)
    assert (missing.status_code, "was answered with status 404" in missing.text) == (400, True)


def test_a_tools_result_may_be_a_picture(seeing: Seeing) -> None:
    data = data_of(shown(SECOND))
    call = {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}
    source = {"type": "base64", "media_type": "image/png", "data": data}
    result = {
        "type": "tool_result",
        "tool_use_id": "call_1",
        "content": [{"type": "text", "text": "seen:"}, {"type": "image", "source": source}],
    }
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "what?"}]},
    ]
    body = {"messages": messages, "max_tokens": 4} | GREEDY
    response = seeing.server.http.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text


def test_a_second_turn_finds_the_picture(seeing: Seeing) -> None:
    before = seeing.chat(shown(picture(7, 56, 56)), text(" first")).json()
    messages = [
        {"role": "user", "content": [shown(picture(7, 56, 56)), text(" first")]},
        {"role": "assistant", "content": before["choices"][0]["message"]["content"]},
        {"role": "user", "content": "and?"},
    ]
    body = {"messages": messages, "max_completion_tokens": 2} | GREEDY
    usage = seeing.server.http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= before["usage"]["prompt_tokens"] // 16 * 16 - 16 > 0
    messages[0]["content"] = [shown(picture(8, 56, 56)), text(" first")]
    usage = seeing.server.http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] < 16


def test_a_reply_to_a_picture_outlives_its_worker(seeing: Seeing) -> None:
    check_a_death(seeing)


def test_that_of_other_families_does_too(other: Seeing) -> None:
    check_a_death(other)


def check_a_death(seeing: Seeing) -> None:
    asked = {"max_completion_tokens": 300, "temperature": 0.8, "seed": 11}
    plain = seeing.said(*PARTS, **asked)
    client, said, killed = seeing.server.client(), list[bytes](), False
    restarts = seeing.server.get("/health").json()["restarts"]
    messages: Any = [{"role": "user", "content": PARTS}]
    stream = client.chat.completions.create(
        model=seeing.server.model,
        messages=messages,
        stream=True,
        logprobs=True,
        extra_body={"ignore_eos": True},
        **asked,
    )
    for chunk in stream:
        logprobs = chunk.choices[0].logprobs
        said += [bytes(token.bytes or []) for token in (logprobs and logprobs.content) or []]
        if len(said) >= 3 and not killed:
            os.kill(seeing.server.get("/health").json()["worker_pid"], signal.SIGKILL)
            killed = True
    wait_until(lambda: seeing.server.get("/health").json()["restarts"] == restarts + 1)
    seeing.server.wait_for("ready")  # the reply may have been written before the worker died
    assert said == plain


def test_detail_low_looks_at_the_whole_alone(seeing: Seeing) -> None:
    tokens = [
        seeing.chat(shown(FIRST, detail=detail), text(" what?")).json()["usage"]["prompt_tokens"]
        for detail in ("low", "auto", "high")
    ]
    assert tokens[0] < tokens[1] == tokens[2]


def test_the_model_says_what_it_takes(seeing: Seeing) -> None:
    assert seeing.server.get("/v1/models").json()["data"][0]["input_modalities"] == ["text", "image"]


@pytest.mark.slow
def test_each_of_several_models_says_what_it_takes(tmp_path: Path) -> None:
    """Once it is loaded."""
    tiny_seeing(KIND, tmp_path / "seeing")
    fields: dict[str, Any] = {"model": str(tmp_path / "seeing"), "dtype": "float32", "drain_seconds": 2}
    fields |= {"kv_slots": 8192, "standby": False}
    models = [ServerSettings(**fields), ServerSettings(**fields, images=False, served_model_name="blind")]
    with running_server(models[0], WORKER_COMMAND, models=models) as server:

        def modalities() -> dict[str, Any]:
            return {card["id"]: card.get("input_modalities") for card in server.get("/v1/models").json()["data"]}

        assert modalities() == {"seeing": None, "blind": None}
        body: dict[str, Any] = {"messages": [{"role": "user", "content": PARTS}], "max_completion_tokens": 2}
        seen, unseen = (
            server.http.post("/v1/chat/completions", json=body | {"model": name}) for name in ("seeing", "blind")
        )
        assert seen.status_code == 200, seen.text
        assert unseen.json()["error"]["message"] == "The model takes no pictures: it is served with --no-images."
        assert modalities() == {"seeing": ["text", "image"], "blind": ["text"]}
        for name, taken in modalities().items():
            health = server.http.get("/health", params={"model": name}).json()
            assert health["engine"]["input_modalities"] == taken
            told = server.http.post("/api/show", json={"model": name}).json()
            assert ("vision" in told["capabilities"]) == ("image" in taken)


def test_text_alone_is_text(seeing: Seeing) -> None:
    """Also where it names the tokens that stand for pictures."""
    response = seeing.chat(text("a <image> and <fake_token_around_image>"))
    assert response.status_code == 200, response.text
    assert seeing.server.chat("plain text", max_completion_tokens=2).status_code == 200


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}], "does not list"),
        (
            [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
            "none of PNG, JPEG, WebP and GIF",
        ),
        ([shown(picture(0, 300, 300))], "300 x 300 pixels; this server takes 20,000"),
        ([shown(picture(0, 1, 1000))], "may be 200 times the other"),
        ([shown(SECOND)] * 4, "have 4 pictures; this server takes 3 at most"),
        ([{"type": "image_url"}], "must have an image_url"),
        ([{"type": "image_url", "image_url": {"url": url_of(SECOND)[:-40]}}], "is broken"),
        ([{"type": "image_url", "image_url": {"url": url_of(SECOND), "detail": "huge"}}], "detail must be one of auto"),
        ([{"type": "input_audio", "input_audio": {}}, shown(SECOND)], "must be of type text, or"),
    ],
)
def test_broken_pictures_are_refused_with_a_sentence(seeing: Seeing, parts: list[Any], message: str) -> None:
    response = seeing.chat(*parts, text("what?"))
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert response.json()["error"]["param"].startswith("messages")


def test_a_prompt_with_pictures_is_not_cut(seeing: Seeing) -> None:
    response = seeing.chat(shown(SECOND), truncate_prompt_tokens=5)
    assert response.json()["error"]["param"] == "truncate_prompt_tokens"


def test_a_model_of_text_refuses_pictures_with_a_sentence(server: RunningServer) -> None:
    """In each API, before a picture is read."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    item = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    for path, body, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}, "messages"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [block]}], "max_tokens": 5}, "messages"),
        ("/v1/responses", {"input": [{"role": "user", "content": [item]}]}, "input"),
    ):
        response = server.http.post(path, json=body)
        assert response.status_code == 400, path
        error = response.json()["error"]
        assert (error["message"], error["param"]) == ("The model takes no pictures: it reads text alone.", param)
    assert server.get("/v1/models").json()["data"][0]["input_modalities"] == ["text"]
