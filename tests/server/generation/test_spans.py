"""Where tracing is on, a request is a trace: the sender's, with spans for queue, prefill and decode, and no text."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from decoding.errors import ConfigError
from server.config import ServerSettings
from server.http.tracing import exporting_provider
from tests.server.servers import RunningServer, make_model_folder, running_server, wait_until

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE:032x}-{PARENT:016x}-01"
SECRET = "nobody-shall-see-this"


class Traced:
    def __init__(self, server: RunningServer, exporter: InMemorySpanExporter) -> None:
        self.server = server
        self._exporter = exporter

    def spans_of(self, path: str, body: dict[str, Any], **headers: str) -> tuple[Any, list[ReadableSpan]]:
        """What is answered, and the request's spans, its own last."""
        self._exporter.clear()
        response = self.server.http.post(path, json=body, headers=headers)
        wait_until(lambda: any(span.name.startswith("POST ") for span in self._exporter.get_finished_spans()))
        return response, list(self._exporter.get_finished_spans())


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    with running_server(ServerSettings(model=str(folder), drain_seconds=2), tracing=provider) as server:
        yield Traced(server, exporter)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_the_senders_trace_with_three_spans_for_each_choice(traced: Traced, stream: bool) -> None:
    prompt = json.dumps({"say": "abcdefghi", "cached": [7]})
    body = {"prompt": prompt, "max_tokens": 9, "n": 2, "stream": stream}
    response, spans = traced.spans_of("/v1/completions", body, traceparent=TRACEPARENT, **{"x-request-id": "mine"})
    *children, request = spans
    assert request.name == "POST /v1/completions"
    assert request.parent is not None
    assert (request.context.trace_id, request.parent.span_id) == (TRACE, PARENT)
    told = attributes(request)
    assert (told["gander.request_id"], told["http.response.status_code"]) == ("mine", 200)
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (len(prompt), 18)
    if not stream:
        assert told["gen_ai.response.id"] == response.json()["id"]
    assert len(children) == 6
    for choice in (0, 1):
        own = [span for span in children if attributes(span)["gander.choice"] == choice]
        assert [span.name for span in own] == ["queue", "prefill", "decode"]
        assert all(span.parent is not None and span.parent.span_id == request.context.span_id for span in own)
        assert all(one.end_time == other.start_time for one, other in pairwise(own))
        assert request.start_time <= own[0].start_time <= own[-1].end_time <= request.end_time  # type: ignore[operator]
        assert attributes(own[1])["gander.cached_tokens"] == 7
        decode = attributes(own[2])
        assert (decode["gander.method"], decode["gander.tokens"]) == ("spine", 9)
        assert decode["gander.accepted"] == decode["gander.accepted.context"] > 0
        assert decode["gander.acceptance_length"] == 3.0


@pytest.mark.parametrize("traceparent", ["", "00-zz-1-01", f"00-{TRACE:032x}-{0:016x}-01"])
def test_without_a_trace_that_can_be_read_a_new_one_begins(traced: Traced, traceparent: str) -> None:
    _, spans = traced.spans_of("/v1/completions", {"prompt": "a", "max_tokens": 1}, traceparent=traceparent)
    assert spans[-1].parent is None
    assert {span.context.trace_id for span in spans} != {TRACE}


def test_a_sender_that_does_not_sample_is_not_traced(traced: Traced) -> None:
    unsampled = f"00-{TRACE:032x}-{PARENT:016x}-00"
    traced.server.http.post("/v1/completions", json={"prompt": "b"}, headers={"traceparent": unsampled})
    _, spans = traced.spans_of("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert {span.context.trace_id for span in spans} == {spans[-1].context.trace_id} != {TRACE}


def test_errors_are_seen_and_no_text_is(traced: Traced) -> None:
    messages = [{"role": "user", "content": json.dumps({"say": SECRET})}]
    for path, body, status in (
        ("/v1/chat/completions", {"messages": messages}, 200),
        ("/v1/messages", {"messages": messages, "max_tokens": 30, "model": "toy"}, 200),
        ("/v1/responses", {"input": SECRET, "max_output_tokens": 2}, 200),
        ("/v1/completions", {"prompt": SECRET, "temperature": SECRET}, 400),
        ("/v1/completions", {"prompt": json.dumps({"fail": SECRET})}, 500),
    ):
        response, spans = traced.spans_of(path, body)
        assert response.status_code == status, response.text
        assert attributes(spans[-1])["http.response.status_code"] == status
        assert spans[-1].status.is_ok != (status == 500)
        assert SECRET not in "".join(span.to_json() for span in spans)


def test_where_the_packages_are_missing_it_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="the extra otel"):
        exporting_provider("http://127.0.0.1:1/v1/traces")
