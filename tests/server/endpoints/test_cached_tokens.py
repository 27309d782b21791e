"""What calls say of prompt tokens that need not be run, in front of the scripted worker."""

import json
from typing import Any

import pytest

from tests.server.servers import RunningServer


def script(**fields: Any) -> str:
    return json.dumps(fields)


def test_the_openai_client_sees_them_in_completions_and_chats(server: RunningServer) -> None:
    client, prompt = server.client(), script(say="ab", cached=[48])
    options: Any = {"include_usage": True}
    calls: list[Any] = [
        lambda **more: client.completions.create(model=server.model, prompt=prompt, **more),
        lambda **more: client.chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": prompt}], **more
        ),
    ]
    for call in calls:
        usages = [call().usage, list(call(stream=True, stream_options=options))[-1].usage]
        assert [usage.prompt_tokens_details.cached_tokens for usage in usages] == [48, 48]


def test_the_openai_client_sees_them_in_responses(server: RunningServer) -> None:
    arguments: dict[str, Any] = {"model": server.model, "input": script(say="ab", cached=[48])}
    client = server.client()
    plain = client.responses.create(**arguments).usage
    assert plain is not None
    assert plain.input_tokens_details.cached_tokens == 48
    last: Any = list(client.responses.create(**arguments, stream=True))[-1]
    assert last.response.usage == plain


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_counts_once_for_its_choices_with_what_one_of_them_had_to_run(
    server: RunningServer, stream: bool
) -> None:
    prompts = [script(cached=[32, 16, 48]), script(cached=[64, 80, 96])]
    body: dict[str, Any] = {"prompt": prompts, "n": 3, "max_tokens": 4}
    if stream:
        text = server.post(**body, stream=True, stream_options={"include_usage": True}).text
        usage = json.loads(text.split("\n\n")[-3].removeprefix("data: "))["usage"]
    else:
        usage = server.post(**body).json()["usage"]
    assert usage["prompt_tokens"] == sum(map(len, prompts))
    assert usage["prompt_tokens_details"] == {"cached_tokens": 16 + 64}


def test_a_running_count_knows_them_once_all_choices_of_the_prompt_have_ended(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    prompt = script(say="xyz", per_step=1, delay=0.02, cached=[32, 16])
    text = server.post(prompt=prompt, n=2, max_tokens=9, stream=True, stream_options=options).text
    frames = [frame.removeprefix("data: ") for frame in text.split("\n\n") if frame.startswith("data: {")]
    counts = [json.loads(frame)["usage"]["prompt_tokens_details"]["cached_tokens"] for frame in frames]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 16)


def test_the_report_of_a_choice_has_its_own_and_its_preemptions(server: RunningServer) -> None:
    body = {"prompt": script(cached=[16, 32], preemptions=2), "n": 2, "max_tokens": 4, "speculation": {"report": True}}
    reports = [choice["speculation"] for choice in server.post(**body).json()["choices"]]
    assert [(report["cached_tokens"], report["preemptions"]) for report in reports] == [(16, 2), (32, 2)]


def test_a_salt_goes_with_every_request_of_a_call(server: RunningServer) -> None:
    prompt, salt = script(tell=True, per_step=500), {"cache_salt": "s3"}
    completion = server.post(prompt=prompt, n=2, max_tokens=3000, **salt).json()
    texts = [choice["text"] for choice in completion["choices"]]
    texts.append(server.chat(prompt, **salt).json()["choices"][0]["message"]["content"])
    response = server.http.post("/v1/responses", json={"input": prompt, **salt}).json()
    texts.append(response["output"][0]["content"][0]["text"])
    assert [json.loads(text)["cache_salt"] for text in texts] == ["s3"] * 4
    told = server.post(prompt=prompt, max_tokens=3000).json()["choices"][0]["text"]
    assert json.loads(told).get("cache_salt", "") == ""
