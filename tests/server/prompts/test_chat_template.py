"""Chat templates: what they are given, what they may do, and where they are found."""

import asyncio
import json
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerSettings
from server.http.errors import ApiError
from server.prompts.chat_template import ChatTemplate, Conversation, load_chat_template
from server.prompts.jinja_template import TemplateRefusal
from server.prompts.model_files import ModelFiles
from server.prompts.template_process import MAX_CHARS
from tests.server.servers import make_model_folder, running_server

HELLO = ({"role": "user", "content": "hello"},)


def render(source: str, **fields: Any) -> str:
    with closing(ChatTemplate({"default": source}, {"bos_token": "<s>"})) as template:
        return rendered(template, **fields)


def rendered(template: ChatTemplate, **fields: Any) -> str:
    return asyncio.run(template.render(Conversation(**{"messages": HELLO} | fields))).text


def loaded(files: ModelFiles, given: str | None = None, **fields: Any) -> str:
    template = load_chat_template(files, ServerSettings(chat_template=given))
    assert template is not None
    with closing(template):
        return rendered(template, **fields)


def test_a_template_has_what_transformers_gives_it() -> None:
    assert (
        render("{{ bos_token }}{{ messages[0].content }}|{{ tools }}|{{ add_generation_prompt }}")
        == "<s>hello|None|True"
    )
    assert render("{{ tools | tojson }}", tools=({"a": "é"},)) == '[{"a": "é"}]'
    assert render("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "1"
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"
    assert render("{{ thinking }}", options={"thinking": "yes"}) == "yes"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("x\n  {% if true %}\n  y\n  {% endif %}\n") == "x\n  y\n"


def test_a_template_that_refuses_is_quoted() -> None:
    with pytest.raises(ApiError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert (caught.value.status, caught.value.param) == (400, "messages")
    for source in ("{{ messages[5].content.x }}", "{{ 1 / 0 }}", "{{ messages.append(1) }}"):
        with pytest.raises(ApiError):
            render(source)


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.__init__.__globals__ }}"])
def test_the_sandbox_lets_nothing_out(source: str) -> None:
    with pytest.raises(ApiError, match="sandbox"):
        render(source)


def test_the_last_message_can_be_continued() -> None:
    source = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"
    messages = (*HELLO, {"role": "assistant", "content": " Once "})
    assert render(source, messages=messages, continue_final_message=True) == "<hello><Once"
    with pytest.raises(ApiError):
        render("nothing", continue_final_message=True)


@pytest.mark.parametrize("content", ["e", "|", "end", "im", ">", "\n", "so \n", "", " assistant", "a\ufdd0"])
def test_a_last_message_is_cut_at_its_end_whatever_it_says(content: str) -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    messages = (*HELLO, {"role": "assistant", "content": content})
    asked = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert render(source, messages=messages, continue_final_message=True) == asked + content
    trimmed = source.replace("m.content", "m.content | trim")
    assert render(trimmed, messages=messages, continue_final_message=True) == asked + content.strip()
    twice = "{{ messages[-1].content }}!" + source
    assert render(twice, messages=messages, continue_final_message=True) == f"{content}!{asked}{content}"


def test_templates_are_found_in_every_place(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", None)
    files = ModelFiles(str(folder), None)
    assert load_chat_template(files, ServerSettings()) is None
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>"}, "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert loaded(files) == "plain"
    assert loaded(files, tools=({"a": 1},)) == "tools"
    (folder / "chat_template.jinja").write_text("file {{ eos_token }}")
    assert loaded(files) == "file </s>"
    given = tmp_path / "given.jinja"
    given.write_text("given")
    assert loaded(files, str(given)) == "given"


def test_a_request_may_bring_its_template_where_that_is_allowed(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", None)
    settings = ServerSettings(model=str(folder), drain_seconds=1, trust_request_chat_template=True)
    with running_server(settings) as server, ThreadPoolExecutor() as pool:
        refused = server.chat("a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "no_chat_template")
        reply = server.chat('{"tell": true}', chat_template="<<{{ messages[0].content }}>>\n{{ messages[0].content }}")
        told = json.loads(reply.json()["choices"][0]["message"]["content"])
        assert bytes(told["prompt"]).decode() == '<<{"tell": true}>>\n{"tell": true}'
        broken = server.chat("a", chat_template="{% if %}")
        assert (broken.status_code, broken.json()["error"]["param"]) == (400, "chat_template")
        bombs, ended = [pool.submit(server.chat, "a", chat_template=BOMBS[0]) for _ in range(2)], []
        health = pool.submit(server.get, "/health")
        for future in (*bombs, health):
            future.add_done_callback(ended.append)
        assert health.result().status_code == 200
        for bomb in bombs:
            error = bomb.result().json()["error"]
            assert (error["param"], error["code"]) == ("chat_template", "invalid_template")
            assert error["message"] == "The chat template takes more than 2 seconds."
    assert ended[0] is health


BOMBS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% if i * j == -1 %}a{% endif %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ ('a' * 10 ** 8) | list }}",
    "{% set n = 9 %}{{ n ** (n ** n) }}",
    f"{{{{ 'a' * {MAX_CHARS + 1} }}}}",
]


@pytest.mark.parametrize("bomb", BOMBS[1:])
def test_a_clients_template_ends_at_its_limits(bomb: str) -> None:
    kinds = resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF  # a child begins as a copy of its parent
    before = max(resource.getrusage(kind).ru_maxrss for kind in kinds)
    with pytest.raises(ApiError, match=r"takes more than|writes more than") as caught:
        rendered(ChatTemplate({}, {}).replaced_by(bomb))
    assert (caught.value.param, caught.value.code) == ("chat_template", "invalid_template")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 250 * 1024)  # KiB


def test_a_clients_template_does_what_the_models_would() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}|{{ tools | tojson }}|{{ x }}"
    template = ChatTemplate({"default": source}, {"bos_token": "<s>"})
    conversation = Conversation(
        messages=({"content": "é\ud800\ufdd0"},), tools=({"b": 1, "a": [None]},), options={"x": 1}
    )
    with closing(template):
        assert asyncio.run(template.replaced_by(source).render(conversation)) == asyncio.run(
            template.render(conversation)
        )
    with pytest.raises(ApiError, match="sandbox"):
        rendered(template.replaced_by("{{ ''.__class__.__mro__ }}"))


NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", ["{{ 9 ** (9 ** 9) }}", "{{ messages"])
def test_a_models_template_that_cannot_be_compiled_within_the_limits_is_refused(tmp_path: Path, source: str) -> None:
    folder = make_model_folder(tmp_path / "toy", source)
    with pytest.raises(TemplateRefusal, match=r"takes more than|cannot be read"):
        load_chat_template(ModelFiles(str(folder), None), ServerSettings())


def test_a_models_template_delays_nobody_and_ends_at_its_limits(tmp_path: Path) -> None:
    bombs = "{% set n = 9 %}{% if x == 'loops' %}" + NESTED + "{% elif x == 'power' %}{{ n ** (n ** n) }}{% endif %}"
    folder = make_model_folder(tmp_path / "toy", bombs + "{{ messages[0].content }}")
    with running_server(ServerSettings(model=str(folder), drain_seconds=1)) as server, ThreadPoolExecutor() as pool:

        def reply_to(x: str) -> Any:
            return server.chat('{"tell": true}', chat_template_kwargs={"x": x}).json()

        def prompt_of(reply: Any) -> list[int]:
            return json.loads(reply["choices"][0]["message"]["content"])["prompt"]

        whole = prompt_of(reply_to("nothing"))
        for name in ("loops", "power"):
            bomb = pool.submit(reply_to, name)
            assert server.get("/ready").status_code == 200
            error = bomb.result()["error"]
            assert error["param"] == "messages"
            assert error["message"].startswith("The chat template takes more than ")
            assert prompt_of(reply_to("nothing")) == whole


def test_a_rendering_that_nobody_waits_for_is_no_answer_to_the_next() -> None:
    async def leave_and_ask(template: ChatTemplate) -> str:
        left = asyncio.create_task(template.render(Conversation(messages=HELLO, options={"bomb": True})))
        await asyncio.sleep(0.3)
        left.cancel()
        return (await template.render(Conversation(messages=HELLO))).text

    with closing(ChatTemplate({"default": "{% if bomb %}" + NESTED + "{% endif %}whole"}, {})) as template:
        assert asyncio.run(leave_and_ask(template)) == "whole"


def test_a_process_that_was_killed_is_replaced() -> None:
    with closing(ChatTemplate({"default": "whole"}, {})) as template:
        assert rendered(template) == "whole"
        child = template._process._child
        assert child is not None
        child.process.kill()
        child.process.wait()
        assert rendered(template) == "whole"


def test_a_long_conversation_has_room() -> None:
    with closing(
        ChatTemplate({"default": "{% for m in messages %}{{ m.content | trim }}|{% endfor %}"}, {})
    ) as template:
        messages = [{"role": "user", "content": "ö" * 2**20}] * 8
        assert len(rendered(template, messages=[dict(each) for each in messages])) == 8 * (2**20 + 1)
