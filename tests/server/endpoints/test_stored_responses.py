"""Responses that are kept: gone on from, read again, deleted, and nobody else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError

from server.config import ServerSettings
from tests.server.servers import RunningServer, make_model_folder, running_server

TELL = json.dumps({"tell": True, "per_step": 900})
TOOL: Any = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}}


def prompt_told(reply: Any) -> str:
    return bytes(json.loads(reply.output_text)["prompt"]).decode()


def test_a_response_goes_on_from_an_earlier_one(server: RunningServer) -> None:
    client = server.client()
    first = client.responses.create(
        model=server.model, input=json.dumps({"say": "it is noon"}), instructions="be brief"
    )
    assert (first.store, first.previous_response_id) == (True, None)
    second = client.responses.create(
        model=server.model, input=json.dumps({"say": "yes"}), previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    third = client.responses.create(model=server.model, input=TELL, previous_response_id=second.id)
    asked = [json.dumps({"say": "it is noon"}), json.dumps({"say": "yes"})]
    said = f"[user]\n{asked[0]}\n[assistant]\nit is noon\n[user]\n{asked[1]}\n[assistant]\nyes\n"
    assert prompt_told(third) == f"{said}[user]\n{TELL}\n[assistant]\n", "instructions are of one response only"
    again = client.responses.create(model=server.model, input=TELL, previous_response_id=first.id)
    assert "yes" not in prompt_told(again), "a conversation may fork"


def test_a_call_is_answered_without_being_repeated(server: RunningServer) -> None:
    client = server.client()
    say = json.dumps({"say": 'so: <tool_call>{"name": "time", "arguments": {"a": 1}}</tool_call>'})
    with client.responses.stream(model=server.model, input=say, tools=[TOOL]) as stream:
        first = stream.get_final_response()
    call: Any = first.output[1]
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": TELL}]
    told = prompt_told(client.responses.create(model=server.model, input=output, previous_response_id=first.id))
    assert told.endswith(
        f'<tool_call>\n{{"name": "time", "arguments": {{"a": 1}}}}\n</tool_call>\n[tool]\n{TELL}\n[assistant]\n'
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_read_again_and_deleted(server: RunningServer, stream: bool) -> None:
    client = server.client()
    body = {"input": json.dumps({"say": "abc"}), "metadata": {"a": "b"}, "top_logprobs": 1, "stream": stream}
    sent = server.http.post("/v1/responses", json=body)
    reply = json.loads(sent.text.rstrip().rpartition("data: ")[2])["response"] if stream else sent.json()
    assert server.get(f"/v1/responses/{reply['id']}").json() == reply
    assert client.responses.retrieve(reply["id"]).output_text == "abc"
    with pytest.raises(BadRequestError, match="background"):
        client.responses.cancel(reply["id"])
    assert server.get(f"/v1/responses/{reply['id']}?stream=true").status_code == 400
    deleted = server.http.delete(f"/v1/responses/{reply['id']}").json()
    assert deleted == {"id": reply["id"], "object": "response", "deleted": True}
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(NotFoundError):
            call(reply["id"])


def test_what_is_not_to_be_kept_is_not(server: RunningServer) -> None:
    client = server.client()
    reply = client.responses.create(model=server.model, input="a", max_output_tokens=1, store=False)
    assert reply.store is False
    with pytest.raises(NotFoundError):
        client.responses.retrieve(reply.id)
    failed = server.http.post("/v1/responses", json={"input": json.dumps({"fail": "x"}), "stream": True})
    assert failed.status_code == 500


def test_the_tokens_of_an_input_are_counted(server: RunningServer) -> None:
    client = server.client()
    first = client.responses.create(model=server.model, input=json.dumps({"say": "abc"}))
    for extra in ({}, {"previous_response_id": first.id}, {"instructions": "be brief", "tools": [TOOL]}):
        counted = client.responses.input_tokens.count(model=server.model, input="hello", extra_body=extra)
        assert counted.object == "response.input_tokens"
        run = client.responses.create(model=server.model, input="hello", max_output_tokens=1, extra_body=extra)
        assert run.usage is not None
        assert counted.input_tokens == run.usage.input_tokens


def test_a_key_sees_its_own_alone_and_a_server_may_keep_none(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    settings = ServerSettings(model=str(folder), api_keys="one,two", drain_seconds=1)
    with running_server(settings) as server:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"input": "a", "max_output_tokens": 1}
        kept = server.http.post("/v1/responses", json=body, headers=one).json()["id"]

        def statuses(headers: dict[str, str]) -> list[int]:
            calls: list[httpx.Response] = [
                server.http.get(f"/v1/responses/{kept}", headers=headers),
                server.http.get(f"/v1/responses/{kept}/input_items", headers=headers),
                server.http.post("/v1/responses", json=body | {"previous_response_id": kept}, headers=headers),
                server.http.delete(f"/v1/responses/{kept}", headers=headers),
            ]
            return [call.status_code for call in calls]

        assert statuses(two) == [404, 404, 400, 404]
        assert statuses(one) == [200, 200, 200, 200]
    settings = ServerSettings(model=str(folder), response_store_bytes=0, drain_seconds=1)
    with running_server(settings) as server:
        reply = server.http.post("/v1/responses", json=body | {"store": True}).json()
        assert reply["store"] is False
        assert server.get(f"/v1/responses/{reply['id']}").status_code == 404


def test_what_a_response_answers_is_listed_in_pages(server: RunningServer) -> None:
    client = server.client()
    items: Any = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "id": "rs_mine", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "two", "id": "msg_mine"},
        {"type": "function_call", "call_id": "c1", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {"role": "assistant", "content": "three", "id": "msg_mine"},
    ]
    say: Any = {"role": "user", "content": json.dumps({"say": "yes"})}
    first = client.responses.create(model=server.model, input=[*items, say])
    second = client.responses.create(model=server.model, input=json.dumps({"say": "no"}), previous_response_id=first.id)
    listed = list(client.responses.input_items.list(first.id, order="asc"))
    kinds = ["message", "reasoning", "message", "function_call", "function_call_output", "message", "message"]
    assert [item.type for item in listed] == kinds
    texts = [item.to_dict() for item in listed]
    assert [item["id"] for item in texts[1:3]] == ["rs_mine", "msg_mine"]
    assert texts[0]["content"] == [{"type": "input_text", "text": "one"}]
    assert texts[1]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert texts[2]["content"] == [{"type": "output_text", "text": "two", "annotations": [], "logprobs": []}]
    assert (texts[3]["arguments"], texts[4]["output"]) == ("{}", "noon")
    ids = [item.id for item in listed]
    assert len(set(ids)) == len(ids), "each has an id of its own, also where the client repeats one"
    for limit in (1, 2, 3, 7, 100):
        pages: Any = client.responses.input_items.list(first.id, limit=limit)
        assert [item.id for item in pages] == ids[::-1], "the newest comes first"
    page = server.get(f"/v1/responses/{first.id}/input_items?order=asc&limit=2&after={ids[1]}").json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (ids[2:4], True)
    assert (page["object"], page["first_id"], page["last_id"]) == ("list", ids[2], ids[3])
    end = server.get(f"/v1/responses/{first.id}/input_items?after={ids[0]}").json()
    assert end == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    later = [item.id for item in client.responses.input_items.list(second.id, order="asc")]
    assert later[: len(ids)] == ids
    assert later[len(ids)] == first.output[0].id
    assert len(later) == len(ids) + 2


def test_items_that_are_not_there_are_not_listed(server: RunningServer) -> None:
    reply = server.http.post("/v1/responses", json={"input": "a", "max_output_tokens": 1}).json()
    path = f"/v1/responses/{reply['id']}/input_items"
    for query, param in (
        ("after=x", "after"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=up", "order"),
    ):
        error = server.get(f"{path}?{query}").json()["error"]
        assert error["param"] == param
    assert server.get("/v1/responses/resp_none/input_items").status_code == 404
    assert server.http.delete(f"/v1/responses/{reply['id']}").status_code == 200
    assert server.get(path).status_code == 404
