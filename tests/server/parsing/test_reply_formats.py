"""The format of a model's replies is found by flags, by a file, by the tokenizer, and by the chat template."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from decoding.errors import ConfigError
from server.config import ServerSettings
from server.parsing.reply_format import families, joined
from server.parsing.reply_formats import ReplyFormats, load_reply_formats
from server.prompts.chat_template import load_chat_template
from server.prompts.jinja_template import compiled, rendered
from server.prompts.model_files import ModelFiles
from tests.server.parsing.family_replies import ARGUMENTS, TOOLS
from tests.server.parsing.family_templates import TEMPLATES
from tests.server.parsing.replies import called, parser_of, read
from tests.server.servers import CHAT_TEMPLATE, make_model_folder

AUTO = ReplyFormats()
ROOT = Path(__file__).parents[3]
CALLERS = sorted(name for name, family in families().items() if family.calls)


def test_every_family_has_a_template_here() -> None:
    assert sorted(TEMPLATES) == CALLERS


@pytest.mark.parametrize("name", CALLERS)
def test_a_template_says_which_family_it_is(name: str) -> None:
    assert AUTO.of(TEMPLATES[name]).calls == families()[name].calls
    sentence, is_warning = AUTO.told(TEMPLATES[name])
    assert (f" {name} " in sentence, is_warning) == (True, False), sentence


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("num_calls", [1, 2])
def test_calls_that_a_template_writes_are_read_back(name: str, num_calls: int) -> None:
    """The reader takes what the family's own template shows the model as its earlier replies."""
    is_text = "+ f.arguments +" in TEMPLATES[name]
    given = [("weather", ARGUMENTS), ("now", {})][:num_calls]
    calls = [
        {"function": {"name": each, "arguments": json.dumps(value) if is_text else value}} for each, value in given
    ]
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
    text = rendered(compiled(TEMPLATES[name]), {"messages": messages, "tools": None})
    if name == "llama3" and num_calls == 2:
        text = text.replace("}{", "}; {")
    reply = text.partition("<|assistant|>")[2].rstrip("\n")
    assert called(read([reply], parser_of(name, schemas=TOOLS))) == given


@pytest.mark.parametrize(
    ("text", "thoughts"),
    [
        ("{# </think> #}", [["<think>", "</think>"]]),
        ("[THINK]{{ m }}[/THINK]", [["[THINK]", "[/THINK]"]]),
        ("<seed:think>{{ m }}</seed:think>", [["<seed:think>", "</seed:think>"]]),
        ("<|channel|>", [["<|channel|>analysis<|message|>", "<|end|>"]]),
        ("plain", []),
    ],
)
def test_a_template_says_how_the_model_thinks(text: str, thoughts: list[list[str]]) -> None:
    assert [list(pair) for pair in AUTO.of(text).thoughts] == thoughts


def test_a_template_that_does_not_know_tools_gets_the_form_that_its_prompt_then_asks_for() -> None:
    assert AUTO.of(CHAT_TEMPLATE).calls == families()["hermes"].calls
    assert AUTO.of("{{ tools }}").calls == ()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("{{ tools }}", "tool calls"), ("{# <tool_call> #}{{ enable_thinking }}", "thoughts"), (CHAT_TEMPLATE, "")],
)
def test_what_cannot_be_read_is_a_warning(text: str, wrong: str) -> None:
    sentence, is_warning = AUTO.told(text)
    assert is_warning == bool(wrong)
    assert f"The format of this model's {wrong} is not known" in sentence or not wrong


def test_flags_go_before_the_template() -> None:
    found = ReplyFormats("llama3", "none").of(TEMPLATES["hermes"] + "</think>")
    assert (found.calls, found.thoughts) == (families()["llama3"].calls, ())


OWN: dict[str, Any] = {
    "models": "ours",
    "recognised_by": [],
    "calls": [{"call": "@{name}@{arguments}@"}],
    "thoughts": [["((", "))"]],
}
LIBRARYS: dict[str, Any] = {
    "version": 1,
    "start_anchor": "<|assistant|>",
    "fields": {
        "content": {},
        "tool_calls": {"open": "<call>", "close": "</call>", "repeats": True, "content": "json"},
    },
}


def test_a_file_may_describe_a_family(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps(OWN))
    found = load_reply_formats({}, str(tmp_path / "own.json"), "auto", "auto").of(TEMPLATES["hermes"] + "</think>")
    assert [form.call for form in found.calls] == ["@{name}@{arguments}@"]
    assert found.thoughts == (("((", "))"),)


def test_a_file_may_be_a_response_template(tmp_path: Path) -> None:
    (tmp_path / "librarys.json").write_text(json.dumps(LIBRARYS))
    found = load_reply_formats({}, str(tmp_path / "librarys.json"), "auto", "auto").of(TEMPLATES["hermes"])
    assert found.template is not None
    assert found.calls == ()


def test_a_tokenizers_template_is_taken_where_it_is_no_family_that_is_known() -> None:
    config = {"response_template": LIBRARYS}
    assert load_reply_formats(config, None, "auto", "auto").of(TEMPLATES["hermes"]).template is not None
    fields = LIBRARYS["fields"] | {"tool_calls": LIBRARYS["fields"]["tool_calls"] | {"open": "<tool_call>"}}
    config = {"response_template": LIBRARYS | {"fields": fields}}
    found = load_reply_formats(config, None, "auto", "auto").of(TEMPLATES["hermes"])
    assert found == joined(families()["hermes"], families()["hermes"])


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ('{"models": "x"}', "no response template"),
        ('{"fields": {"content": {"opens": 1}}}', "cannot be used"),
        (json.dumps(OWN | {"calls": [{"cal": ""}]}), "no response template"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_name(tmp_path: Path, content: str | None, wrong: str) -> None:
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=wrong) as caught:
        load_reply_formats({}, str(file), "auto", "auto")
    assert "bad.json" in str(caught.value)


def test_the_log_tells_at_load_how_replies_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_model_folder(tmp_path / "model", TEMPLATES["glm4"])
    with caplog.at_level(logging.INFO, "gander.prompts"):
        template = load_chat_template(ModelFiles(str(folder), None), ServerSettings())
    assert template is not None
    template.close()
    assert "Tool calls are read and written as glm4 describes them." in caplog.text


@pytest.mark.parametrize("field", ["tool_parser", "reasoning_parser"])
def test_an_unknown_family_is_refused_with_those_that_there_are(field: str) -> None:
    with pytest.raises(ValueError, match="must be one of auto"):
        ServerSettings(**{field: "nobody"})


def test_the_docs_table_has_every_family() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", (ROOT / "docs/agents.md").read_text(), re.MULTILINE))
    assert sorted(rows) == CALLERS
