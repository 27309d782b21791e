"""Calls in each family's form: one of `weather` with arguments of many types, then one of `now`, which takes none."""

from __future__ import annotations

from typing import Any

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "is_long": {"type": "boolean"},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}, "tags": {"type": "array"}}},
        },
        "required": ["city"],
    },
    "now": {"type": "object", "properties": {}},
}
ARGUMENTS: dict[str, Any] = {
    "city": 'Aix "en" {Provence}',
    "days": 3,
    "is_long": True,
    "where": {"lat": 43.5, "tags": ["a", "b"]},
}
JSON = '{"city": "Aix \\"en\\" {Provence}", "days": 3, "is_long": true, "where": {"lat": 43.5, "tags": ["a", "b"]}}'
WHERE = '{"lat": 43.5, "tags": ["a", "b"]}'
PYTHON = f"city='Aix \"en\" {{Provence}}', days=3, is_long=True, where={WHERE}"
OBJECTS = f'{{"name": "weather", "arguments": {JSON}}}, {{"name": "now", "arguments": {{}}}}'


def _tags(parameter: str) -> str:
    values = {"city": ARGUMENTS["city"], "days": "3", "is_long": "true", "where": WHERE}
    return "".join(parameter.format(key, value) for key, value in values.items())


QWEN_TAGS = _tags("<parameter={}>\n{}\n</parameter>\n")
SEED_TAGS = _tags("<parameter={}>{}</parameter>\n")
GLM_TAGS = _tags("<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n")
GLM5_TAGS = GLM_TAGS.replace("\n", "")
MINIMAX_TAGS = _tags('<parameter name="{}">{}</parameter>\n')
GEMMA = 'city:<|"|>Aix "en" {Provence}<|"|>,days:3,is_long:true,where:{lat:43.5,tags:[<|"|>a<|"|>,<|"|>b<|"|>]}'
HARMONY = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
DEEPSEEK = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
DEEPSEEK_31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"

HERMES = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
LLAMA = '{{"name": "{}", "parameters": {}}}'


def _both(form: str, between: str = "") -> str:
    return form.format("weather", JSON) + between + form.format("now", "{}")


# By family: the calls as a model writes them.
CALLS = {
    "command_a": "<|START_ACTION|>[" + _both('{{"tool_name": "{}", "parameters": {}}}', ", ") + "]<|END_ACTION|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜>" + _both(DEEPSEEK, "\n") + "<｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜>" + _both(DEEPSEEK_31) + "<｜tool▁calls▁end｜>",
    "gemma4": f"<|tool_call>call:weather{{{GEMMA}}}<tool_call|><|tool_call>call:now{{}}<tool_call|>",
    "glm4": f"<tool_call>weather\n{GLM_TAGS}</tool_call>\n<tool_call>now\n</tool_call>",
    "glm5": f"<tool_call>weather{GLM5_TAGS}</tool_call><tool_call>now</tool_call>",
    "gpt_oss": _both(HARMONY, "<|start|>assistant"),
    "granite": f"<|tool_call|>[{OBJECTS}]",
    "hermes": _both(HERMES, "\n"),
    "kimi_k2": f"<|tool_calls_section_begin|>{KIMI.format('weather', 0, JSON)}{KIMI.format('now', 1, '{}')}"
    "<|tool_calls_section_end|>",
    "lfm2": f"<|tool_call_start|>[weather({PYTHON}), now()]<|tool_call_end|>",
    "llama3": _both(LLAMA, "; "),
    "llama4": f"[weather({PYTHON}), now()]",
    "minimax_m2": f'<minimax:tool_call>\n<invoke name="weather">\n{MINIMAX_TAGS}</invoke>\n'
    '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "mistral": f"[TOOL_CALLS] [{OBJECTS}]",
    "mistral_v11": _both("[TOOL_CALLS]{}[ARGS]{}"),
    "nemotron": f"<TOOLCALL>[{OBJECTS}]</TOOLCALL>",
    "phi4_mini": f"<|tool_call|>[{OBJECTS}]<|/tool_call|>",
    "pythonic": f"[weather({PYTHON}), now()]",
    "qwen3_coder": f"<tool_call>\n<function=weather>\n{QWEN_TAGS}</function>\n</tool_call>\n"
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "seed_oss": f"<seed:tool_call>\n<function=weather>\n{SEED_TAGS}</function>\n</seed:tool_call>\n"
    "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
}
