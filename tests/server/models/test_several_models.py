"""Several models behind one port: which one answers, which are loaded, and what becomes of the others."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from decoding.errors import ConfigError
from server.app import create_service
from server.config import ServerSettings
from server.connect.served import ask
from server.models.log_names import ModelNames
from tests.server.servers import RunningServer, make_model_folder, running_server, wait_until

NAMES = ("alpha", "beta", "gamma")
SLOW = json.dumps({"say": "z" * 60, "delay": 0.02})


def settings_of(tmp_path: Path, name: str, fake: Any = None, **fields: Any) -> ServerSettings:
    folder = make_model_folder(tmp_path / name, fingerprint=f"fp_{name}", identity=f"id_{name}", **fake or {})
    return ServerSettings(**{"model": str(folder), "drain_seconds": 2, "standby": False} | fields)


def serving(models: Sequence[ServerSettings], **fields: Any) -> AbstractContextManager[RunningServer]:
    """A server of these models. fields: of its own settings."""
    return running_server(models[0].model_copy(update=fields), models=models)


def serving_three(tmp_path: Path, **fields: Any) -> AbstractContextManager[RunningServer]:
    return serving([settings_of(tmp_path, name) for name in NAMES], **fields)


def who(server: RunningServer, name: str | None, **body: Any) -> str:
    """The model that answers a request for `name`."""
    reply = server.post(prompt="a", max_tokens=1, **body, **({} if name is None else {"model": name}))
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == (name or server.model)
    return str(reply.json()["system_fingerprint"]).removeprefix("fp_")


def states(server: RunningServer) -> dict[str, str]:
    return {card["id"]: card["state"] for card in server.get("/v1/models").json()["data"]}


def health(server: RunningServer, name: str) -> dict[str, Any]:
    body: dict[str, Any] = server.http.get("/health", params={"model": name}).json()
    return body


def wait_for(server: RunningServer, name: str, state: str) -> None:
    wait_until(lambda: states(server)[name] == state)


def text_of(stream: str) -> str:
    frames = [frame for frame in stream.split("\n\n") if frame.startswith("data: {")]
    return "".join(json.loads(frame.removeprefix("data: "))["choices"][0]["text"] for frame in frames)


def test_a_model_answers_by_its_name_its_aliases_and_a_star_for_all_that_nobody_has(tmp_path: Path) -> None:
    models = [
        settings_of(tmp_path, "alpha", served_model_name="alpha,first"),
        settings_of(tmp_path, "beta", served_model_name="beta,gpt-*"),
    ]
    with serving(models) as server:
        assert states(server) == {"alpha": "absent", "first": "absent", "beta": "absent"}
        assert who(server, None) == "alpha"
        assert states(server) == {"alpha": "ready", "first": "ready", "beta": "absent"}
        answers = {name: who(server, name) for name in ("alpha", "first", "beta", "gpt-5")}
        assert answers == {"alpha": "alpha", "first": "alpha", "beta": "beta", "gpt-5": "beta"}
        unknown = server.post(prompt="a", model="gamma")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert "'alpha', 'first', 'beta'" in unknown.json()["error"]["message"]
        assert server.get("/v1/models/gpt-7").json()["state"] == "ready"
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            said = {"role": "user", "content": "a"}
            body = {"model": "beta", "max_tokens": 16, "messages": [said]}
            if path == "/v1/responses":
                body = {"model": "beta", "max_output_tokens": 16, "input": [said]}
            assert server.http.post(path, json=body).json()["model"] == "beta"
        assert server.http.post("/tokenize", json={"prompt": "ab", "model": "beta"}).json()["count"] == 2


def test_a_star_of_the_default_model_takes_the_names_that_agents_send(tmp_path: Path) -> None:
    models = [settings_of(tmp_path, name, served_model_name=f"{name},*") for name in NAMES]
    with serving(models) as server:
        assert who(server, "claude-opus") == "alpha"
        assert who(server, "gamma") == "gamma"


def test_the_least_recently_used_model_makes_way_for_a_third(tmp_path: Path) -> None:
    with serving_three(tmp_path, max_loaded=2) as server:
        for name in ("alpha", "beta", "alpha", "gamma"):
            assert who(server, name) == name
        assert states(server) == {"alpha": "ready", "beta": "absent", "gamma": "ready"}
        assert who(server, "beta") == "beta"
        assert states(server) == {"alpha": "absent", "beta": "ready", "gamma": "ready"}


def test_a_model_makes_way_where_memory_is_short(tmp_path: Path) -> None:
    with serving_three(tmp_path) as server:
        server.service.loader._free_bytes = lambda: 1000
        _, beta, gamma = server.service.models
        beta.needed_bytes, gamma.needed_bytes = 1000, 1001
        assert [who(server, name) for name in ("alpha", "beta")] == ["alpha", "beta"]
        assert states(server) == {"alpha": "ready", "beta": "ready", "gamma": "absent"}
        assert who(server, "gamma") == "gamma"  # alone it is its worker that says whether it fits
        assert states(server) == {"alpha": "absent", "beta": "absent", "gamma": "ready"}


def test_a_model_is_never_dropped_under_a_request(tmp_path: Path) -> None:
    with serving_three(tmp_path, max_loaded=1) as server, ThreadPoolExecutor() as pool:
        assert who(server, "alpha") == "alpha"
        body = {"prompt": SLOW, "max_tokens": 100, "stream": True, "model": "alpha"}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            pieces = stream.iter_text()
            first = next(pieces)
            other = pool.submit(who, server, "beta")
            wait_until(lambda: "makes way" in health(server, "beta")["sentence"])
            assert states(server)["alpha"] == "ready"
            assert not other.done()
            text = first + "".join(pieces)
        assert text.endswith("data: [DONE]\n\n")
        assert text_of(text) == "z" * 60
        assert other.result() == "beta"
        assert states(server)["alpha"] == "absent"


def test_keep_alive_of_a_request_unloads_the_model_after_it(tmp_path: Path) -> None:
    with serving_three(tmp_path) as server:
        assert who(server, "alpha") == "alpha"
        pid = health(server, "alpha")["worker_pid"]
        assert who(server, "alpha", keep_alive=0) == "alpha"
        wait_for(server, "alpha", "absent")
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert server.get("/ready").status_code == 200
        assert who(server, "alpha", keep_alive=-1) == "alpha"
        (told,) = (each for each in server.get("/health").json()["models"] if each["name"] == "alpha")
        assert (told["status"], told["unload_seconds"]) == ("ready", None)
        refused = server.post(prompt="a", model="alpha", keep_alive="long")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "keep_alive")


def test_keep_alive_of_a_model_is_its_own(tmp_path: Path) -> None:
    models = [settings_of(tmp_path, "alpha", keep_alive=0.0), settings_of(tmp_path, "beta")]
    with serving(models) as server:
        assert [who(server, name) for name in ("beta", "alpha")] == ["beta", "alpha"]
        wait_for(server, "alpha", "absent")
        alpha, beta = server.get("/health").json()["models"]
        assert alpha["unload_seconds"] is None
        assert 0 < beta["unload_seconds"] <= 300
        assert beta["status"] == "ready"


def test_a_workers_death_is_its_models_alone(tmp_path: Path) -> None:
    with serving_three(tmp_path) as server:
        assert [who(server, name) for name in ("alpha", "beta")] == ["alpha", "beta"]
        body = {"prompt": SLOW, "max_tokens": 100, "stream": True, "model": "alpha"}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            pieces = stream.iter_text()
            first = next(pieces)
            os.kill(health(server, "beta")["worker_pid"], signal.SIGKILL)
            wait_until(lambda: health(server, "beta")["restarts"] == 1)
            text = first + "".join(pieces)
        assert text_of(text) == "z" * 60
        assert health(server, "alpha")["restarts"] == 0
        wait_for(server, "beta", "ready")
        assert who(server, "beta") == "beta"
        assert server.metric("gander_worker_restarts_total") == 1


def test_a_stream_gets_comments_while_its_model_loads(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    models = [
        settings_of(tmp_path, "alpha"),
        settings_of(tmp_path, "beta", {"load_gate": str(gate)}, keep_alive_seconds=0.05),
    ]
    prompt = json.dumps({"say": "whole"})
    with serving(models) as server:
        body = {"prompt": prompt, "max_tokens": 10, "stream": True, "model": "beta"}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            pieces = stream.iter_text()
            assert next(pieces).startswith(": loading beta ")
            gate.touch()
            text = "".join(pieces)
        assert text_of(text) == "whole"
        assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_what_goes_wrong_after_a_comment_is_the_streams_last_event(tmp_path: Path, path: str) -> None:
    gate, fake = tmp_path / "gate", {"load_failed": "there is no such layer"}
    models = [
        settings_of(tmp_path, "alpha"),
        settings_of(tmp_path, "beta", fake | {"load_gate": str(gate)}, keep_alive_seconds=0.05),
    ]
    body: dict[str, Any] = {"model": "beta", "stream": True, "max_tokens": 10}
    said = [{"role": "user", "content": "a"}]
    body |= {"messages": said} if path != "/v1/responses" else {"input": said, "max_output_tokens": 16}
    if path == "/v1/responses":
        body.pop("max_tokens")
    with serving(models) as server, server.http.stream("POST", path, json=body) as stream:
        pieces = stream.iter_text()
        first = next(pieces)
        gate.touch()
        events = [line for line in (first + "".join(pieces)).split("\n") if line.startswith("data: {")]
    (told,) = (json.loads(event.removeprefix("data: ")) for event in events)
    error = told["error"] if path != "/v1/responses" else told
    assert error["message"] == "The engine is not ready: there is no such layer."
    assert error["code"] == "engine_failed"


def test_a_plain_request_waits_for_its_model_and_503_ends_a_wait_that_is_too_long(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    models = [
        settings_of(tmp_path, "alpha"),
        settings_of(tmp_path, "beta", {"load_gate": str(gate)}, max_queue_seconds=0.05, served_model_name="beta"),
    ]
    with serving(models) as server, ThreadPoolExecutor() as pool:
        late = server.post(prompt="a", model="beta")
        assert (late.status_code, late.json()["error"]["code"]) == (503, "model_loading")
        assert int(late.headers["retry-after"]) > 0
        impatient = server.post(prompt="a", model="beta", timeout=0.01)
        assert (impatient.status_code, impatient.json()["error"]["code"]) == (504, "timeout")
        refused = server.http.post("/tokenize", json={"prompt": "a", "model": "beta"})
        assert refused.status_code == 503
        gate.touch()
        wait_for(server, "beta", "ready")
        assert pool.submit(who, server, "beta").result() == "beta"


def test_a_model_that_cannot_be_loaded_is_failed_and_others_go_on(tmp_path: Path) -> None:
    models = [settings_of(tmp_path, "alpha"), settings_of(tmp_path, "beta", {"load_failed": "no such layers"})]
    with serving(models) as server:
        assert who(server, "alpha") == "alpha"
        for _ in range(2):  # the second time it is not tried
            refused = server.post(prompt="a", model="beta")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_failed")
            assert "no such layers" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) > 2
        assert states(server) == {"alpha": "ready", "beta": "failed"}
        assert server.get("/ready").status_code == 200
        assert server.http.get("/health", params={"model": "beta"}).status_code == 503
        (tmp_path / "beta" / "fake.json").write_text('{"fingerprint": "fp_beta"}')
        assert server.http.post("/admin/models/beta/load").status_code == 202
        wait_for(server, "beta", "ready")
        assert who(server, "beta") == "beta"


def test_a_model_whose_prompts_cannot_be_made_takes_no_memory(tmp_path: Path) -> None:
    models = [settings_of(tmp_path, name) for name in ("alpha", "beta")]
    with serving(models) as server:
        (tmp_path / "beta" / "tokenizer.json").write_text("{}")
        refused = server.post(prompt="a", model="beta")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_failed")
        assert "tokenizer" in refused.json()["error"]["message"]
        wait_until(lambda: [worker.process for worker in server.service.models.models[1].client.workers] == [None])
        assert who(server, "alpha") == "alpha"


def test_gander_connect_loads_the_default_model(tmp_path: Path) -> None:
    with serving_three(tmp_path) as server:
        assert ask(server.url, None).model == "alpha"


def test_models_are_loaded_and_unloaded_by_hand(tmp_path: Path) -> None:
    with serving_three(tmp_path, api_keys="user", admin_keys="boss") as server:
        server.http.headers["Authorization"] = "Bearer user"
        for what in ("load", "unload"):
            refused = server.http.post(f"/admin/models/beta/{what}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
        server.http.headers["Authorization"] = "Bearer boss"
        begun = server.http.post("/admin/models/beta/load")
        assert (begun.status_code, begun.json()["status"]) == (202, "loading")
        wait_for(server, "beta", "ready")
        assert server.http.post("/admin/models/beta/unload").status_code == 202
        wait_for(server, "beta", "absent")
        assert server.http.post("/admin/models/delta/load").status_code == 404


def test_a_model_that_is_unloaded_by_hand_ends_its_requests_first(tmp_path: Path) -> None:
    with serving_three(tmp_path) as server:
        assert who(server, "alpha") == "alpha"
        body = {"prompt": SLOW, "max_tokens": 100, "stream": True, "keep_alive": -1}
        with server.http.stream("POST", "/v1/completions", json=body) as stream:
            pieces = stream.iter_text()
            first = next(pieces)
            assert server.http.post("/admin/models/alpha/unload").json()["status"] == "ready"
            text = first + "".join(pieces)
        assert text_of(text) == "z" * 60
        wait_for(server, "alpha", "absent")


def test_programs_that_speak_ollamas_api_load_and_unload_models(tmp_path: Path) -> None:
    def loaded() -> list[str]:
        return [each["name"] for each in server.get("/api/ps").json()["models"]]

    with serving_three(tmp_path) as server:
        assert [each["name"] for each in server.get("/api/tags").json()["models"]] == [
            f"{name}:latest" for name in NAMES
        ]
        for name, prompt in (("beta", ""), ("gamma:latest", "a")):
            body = {"model": name, "prompt": prompt, "stream": False, "raw": True, "options": {"num_predict": 1}}
            reply = server.http.post("/api/generate", json=body)
            assert (reply.status_code, reply.json()["model"]) == (200, name)
        assert loaded() == ["beta:latest", "gamma:latest"]
        assert server.http.post("/api/show", json={"model": "alpha"}).json()["capabilities"] == ["completion"]
        gone = server.http.post("/api/generate", json={"model": "beta", "keep_alive": 0})
        assert gone.json()["done_reason"] == "unload"
        wait_until(lambda: loaded() == ["gamma:latest"])
        assert server.http.post("/v1/embeddings", json={"model": "beta", "input": "ab"}).json()["model"] == "beta"
        assert loaded() == ["beta:latest", "gamma:latest"]


def test_sessions_are_by_model_and_outlive_an_unloading_and_a_restart(tmp_path: Path) -> None:
    folder = {"sessions_dir": str(tmp_path / "sessions")}
    models = [settings_of(tmp_path, name, **folder) for name in ("alpha", "beta")]
    with serving(models) as server:
        for name, prompt in (("alpha", "abc"), ("beta", "abcdef")):
            assert server.post(prompt=prompt, model=name, max_tokens=1, session_id="mine").status_code == 200
        wait_until(lambda: len(list((tmp_path / "sessions").rglob("*.session"))) == 2)
        cards = server.get("/v1/sessions").json()["data"]
        assert {(card["model"], card["id"], card["bytes"]) for card in cards} == {
            ("alpha", "mine", 3),
            ("beta", "mine", 6),
        }
        assert who(server, "beta", keep_alive=0) == "beta"
        wait_for(server, "beta", "absent")
        assert who(server, "beta") == "beta"
        listed = server.http.get("/v1/sessions", params={"model": "beta"}).json()["data"]
        assert ("mine", 6) in {(card["id"], card["bytes"]) for card in listed}
    with serving(models) as server:
        for name, size in (("alpha", 3), ("beta", 6)):
            assert server.post(prompt="a", model=name, max_tokens=1, session_id="mine").status_code == 200
            listed = server.http.get("/v1/sessions", params={"model": name}).json()["data"]
            assert ("mine", size) in {(card["id"], card["bytes"]) for card in listed}


def test_metrics_are_told_apart_by_the_models_name(tmp_path: Path) -> None:
    with serving_three(tmp_path) as server:
        for name, count in (("alpha", 3), ("beta", 5)):
            assert server.post(prompt="a", model=name, max_tokens=count).status_code == 200
        wait_until(lambda: server.metric("gander_emitted_tokens_total") == 8)
        text = server.get("/metrics").text
        assert 'gander_emitted_tokens_total{method="spine",model_name="alpha"} 3.0' in text
        assert 'gander_emitted_tokens_total{method="spine",model_name="beta"} 5.0' in text
        for name, is_ready in zip(NAMES, (1.0, 1.0, 0.0), strict=True):
            assert f'gander_ready{{model_name="{name}"}} {is_ready}' in text
        assert text.count("# TYPE gander_ready gauge") == text.count("# TYPE vllm:prompt_tokens_total counter") == 1


def test_the_log_tells_which_model_a_line_is_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ModelNames()
    caplog.handler.addFilter(names)
    caplog.set_level(logging.INFO, "gander")
    try:
        with serving_three(tmp_path) as server:
            assert who(server, "beta") == "beta"
    finally:
        caplog.handler.removeFilter(names)
    assert any(message.startswith("beta: Worker ") and "serves fake" in message for message in caplog.messages)
    assert any(message.startswith("beta: Request ") for message in caplog.messages)


def test_a_stop_refuses_those_who_wait_for_a_model(tmp_path: Path) -> None:
    gate = {"load_gate": str(tmp_path / "gate")}
    models = [settings_of(tmp_path, name, gate) for name in NAMES]
    with serving(models) as server, ThreadPoolExecutor() as pool:
        waiting = [pool.submit(server.post, prompt="a", model="alpha")]
        wait_for(server, "alpha", "loading")
        waiting.append(pool.submit(server.post, prompt="a", model="beta"))
        wait_until(lambda: "its turn" in health(server, "beta")["sentence"])
        loading = server.served.loading
        assert loading is not None
        loading.get_loop().call_soon_threadsafe(server.service.begin_drain)
        replies = [each.result() for each in waiting]
        assert [(reply.status_code, reply.json()["error"]["code"]) for reply in replies] == 2 * [
            (503, "engine_draining")
        ]
        assert server.get("/ready").status_code == 503


def test_a_server_with_a_model_that_is_there_from_the_start_is_ready_once_it_is(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    models = [settings_of(tmp_path, "alpha", {"load_gate": str(gate)}, preload=True), settings_of(tmp_path, "beta")]
    with running_server(models[0], state="loading", models=models) as server:
        assert server.get("/ready").status_code == 503
        refused = server.post(prompt="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_loading")
        gate.touch()
        server.wait_for("ready")
        assert states(server) == {"alpha": "ready", "beta": "absent"}


def test_what_cannot_be_is_said_at_the_start(tmp_path: Path) -> None:
    alpha = settings_of(tmp_path, "alpha")
    with pytest.raises(ConfigError, match=r"models alpha \(.*alpha\) and alpha \(.*beta\) have one name, alpha"):
        create_service(alpha, models=[alpha, settings_of(tmp_path, "beta", served_model_name="alpha")])
    missing = ServerSettings(model=str(tmp_path / "nowhere"), served_model_name="mine")
    with pytest.raises(ConfigError, match=r"models\.mine\.model: there is no folder .*nowhere"):
        create_service(alpha, models=[alpha, missing])
