"""Chat templates in the manner of each family's own: how it shows tools, earlier calls and thoughts, and opens a reply.

They are written from the formats, not copied. Some take a call's arguments as an object, some as text, as theirs do.
"""

from __future__ import annotations

CHAT = """{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}SHOWN{% endif %}{% for message in messages %}<|{{ message.role }}|>
{{ message.content or '' }}CALLS{{ "\\n" }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
EACH = "{% for call in message.tool_calls or [] %}{% set f = call.function %}CALL{% endfor %}"
TAGS = "{% for key, value in f.arguments.items() %}TAG{% endfor %}"
VALUE = "{{ value if value is string else value | tojson }}"
OBJECT = """{{ '{"name": "' ~ f.name ~ '", "arguments": ' ~ (f.arguments | tojson) ~ '}' }}"""
PYTHON = (
    "{{ f.name }}({% for key, value in f.arguments.items() %}{{ ', ' if not loop.first }}{{ key }}={{ value | tojson }}"
    "{% endfor %})"
)
KIMI = "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
DEEPSEEK = "'<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + f.name + '\\n```json\\n' + f.arguments + '\\n```'"
GEMMA = """
{%- macro dialect(value) -%}
  {%- if value is string -%} <|"|>{{ value }}<|"|>
  {%- elif value is mapping -%} {
    {%- for key, each in value.items() -%} {{ ',' if not loop.first }}{{ key }}:{{ dialect(each) }} {%- endfor -%} }
  {%- elif value is iterable -%} [
    {%- for each in value -%} {{ ',' if not loop.first }}{{ dialect(each) }} {%- endfor -%} ]
  {%- else -%} {{ value | tojson }}
  {%- endif -%}
{%- endmacro -%}"""


def _chat(call: str, before: str = "", after: str = "", between: str = "", shown: str = "") -> str:
    """A template that writes a message's calls so."""
    separated = f"{{{{ {between!r} if not loop.first }}}}{call}" if between else call
    calls = f"{{% if message.tool_calls %}}{before}{EACH.replace('CALL', separated)}{after}{{% endif %}}"
    return CHAT.replace("CALLS", calls).replace("SHOWN", shown)


def _tags(tag: str) -> str:
    return TAGS.replace("TAG", tag.replace("KEY", "{{ key }}").replace("VALUE", VALUE))


TEMPLATES = {
    "command_a": _chat(
        OBJECT.replace('"name"', '"tool_name"').replace('"arguments"', '"parameters"'),
        "<|START_ACTION|>[",
        "]<|END_ACTION|>",
        ", ",
    ),
    "deepseek_v3": _chat(
        f"{{{{ {DEEPSEEK} }}}}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "\n",
    ),
    "deepseek_v31": _chat(
        "{{ '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + f.arguments + '<｜tool▁call▁end｜>' }}",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "gemma4": GEMMA + _chat("<|tool_call>call:{{ f.name }}{{ dialect(f.arguments) }}<tool_call|>"),
    "glm4": _chat(
        "\n<tool_call>{{ f.name }}\n" + _tags("<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n") + "</tool_call>"
    ),
    "glm5": _chat(
        "<tool_call>{{ f.name }}" + _tags("<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>") + "</tool_call>"
    ),
    "gpt_oss": _chat(
        "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
        "{{ f.arguments | tojson }}<|call|>"
    ),
    "granite": _chat(OBJECT, "<|tool_call|>[", "]", ", "),
    "hermes": _chat(f"\n<tool_call>\n{OBJECT}\n</tool_call>"),
    "kimi_k2": _chat(
        KIMI + "{{ f.arguments | tojson }}<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "lfm2": _chat(PYTHON, "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "llama3": _chat(
        OBJECT.replace('"arguments"', '"parameters"'), shown='Environment: ipython. Answer with name and "parameters".'
    ),
    "llama4": _chat(PYTHON, "[", "]", ", ", shown="<|header_start|>system<|header_end|>"),
    "minimax_m2": _chat(
        '<invoke name="{{ f.name }}">\n' + _tags('<parameter name="KEY">VALUE</parameter>\n') + "</invoke>\n",
        "\n<minimax:tool_call>\n",
        "</minimax:tool_call>",
    ),
    "mistral": _chat(OBJECT, "[TOOL_CALLS] [", "]", ", "),
    "mistral_v11": _chat("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "nemotron": _chat(OBJECT, "<TOOLCALL>[", "]</TOOLCALL>", ", "),
    "phi4_mini": _chat(OBJECT, "<|tool_call|>[", "]<|/tool_call|>", ", "),
    "pythonic": _chat(
        PYTHON, "[", "]", ", ", shown="Answer with [func_name1(params_name1=params_value1), func_name2(params)]."
    ),
    "qwen3_coder": _chat(
        "\n<tool_call>\n<function={{ f.name }}>\n"
        + _tags("<parameter=KEY>\nVALUE\n</parameter>\n")
        + "</function>\n</tool_call>"
    ),
    "seed_oss": _chat(
        "\n<seed:tool_call>\n<function={{ f.name }}>\n"
        + _tags("<parameter=KEY>VALUE</parameter>\n")
        + "</function>\n</seed:tool_call>"
    ),
}
