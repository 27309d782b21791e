"""The tools that can be pointed at a server: the file or the environment that each reads, and what it needs.

A tool that takes a file of its own beside the user's (Codex, Claude Code, opencode, aider) gets one, so that nothing of
the user's is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from server.connect.served import Served

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tool:
    """path: of the file, below the home folder, None for a tool that has none; content: of that file.

    is_shared: whether the file is the user's own, so that what it has stays. environment: variables to set; start: what
    the user then types. context: tokens below which its own instructions and tools leave no room to work.
    """

    title: str
    context: int
    start: str
    path: str | None = None
    content: Callable[[Served], str] = lambda _: ""
    is_shared: bool = False
    environment: Callable[[Served], Environment] = lambda _: {}
    has_tools: bool = True


def _json(content: Callable[[Served], Any]) -> Callable[[Served], str]:
    return lambda served: json.dumps(content(served), indent=2) + "\n"


def _codex(served: Served) -> str:
    key = 'env_key = "GANDER_API_KEY"\n' if served.key else ""
    return (
        f"model = {json.dumps(served.model)}\n"
        'model_provider = "gander"\n'
        f"model_context_window = {served.context}\n\n"
        "[model_providers.gander]\n"
        'name = "Gander"\n'
        f"base_url = {json.dumps(served.url + '/v1')}\n"
        'wire_api = "responses"\n'
        f"{key}"
    )


def _claude(served: Served) -> Any:
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL")
    small = ("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_SMALL_FAST_MODEL")
    server = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_AUTH_TOKEN": served.sent_key}
    return {"env": server | dict.fromkeys((*names, *small), served.model)}


def _opencode(served: Served) -> Any:
    limit = {"context": served.context, "output": served.context // 4}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Gander",
        "options": {"baseURL": f"{served.url}/v1", "apiKey": served.sent_key},
        "models": {served.model: {"limit": limit}},
    }
    return {"provider": {"gander": provider}, "model": f"gander/{served.model}"}


def _aider(served: Served) -> str:
    settings = {
        "model": f"openai/{served.model}",
        "openai-api-base": f"{served.url}/v1",
        "openai-api-key": served.sent_key,
        "show-model-warnings": False,
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())  # JSON's values are YAML's


def _continue(served: Served) -> str:
    return (
        "name: Gander\n"
        "version: 0.0.1\n"
        "schema: v1\n"
        "models:\n"
        f"  - name: {json.dumps(served.model)}\n"
        "    provider: openai\n"
        f"    model: {json.dumps(served.model)}\n"
        f"    apiBase: {json.dumps(served.url + '/v1')}\n"
        f"    apiKey: {json.dumps(served.sent_key)}\n"
        "    roles: [chat, edit, apply]\n"
        "    capabilities: [tool_use]\n"
        "    defaultCompletionOptions:\n"
        f"      contextLength: {served.context}\n"
    )


def _zed(served: Served) -> Any:
    can = {"tools": True, "images": False, "parallel_tool_calls": True, "prompt_cache_key": False}
    model = {
        "name": served.model,
        "display_name": served.model,
        "max_tokens": served.context,
        "capabilities": can,
    }
    provider = {"api_url": f"{served.url}/v1", "available_models": [model]}
    return {"language_models": {"openai_compatible": {"Gander": provider}}}


def _openai_environment(served: Served) -> Environment:
    return {"OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_API_KEY": served.sent_key, "OPENAI_MODEL": served.model}


def _key_environment(served: Served) -> Environment:
    return {"GANDER_API_KEY": served.key} if served.key else {}


TOOLS: Mapping[str, Tool] = {
    "codex": Tool(
        title="Codex",
        context=16384,
        start="codex --profile gander",
        path=".codex/gander.config.toml",
        content=_codex,
        environment=_key_environment,
    ),
    "claude": Tool(
        title="Claude Code",
        context=32768,
        start="claude --settings ~/.claude/gander.json",
        path=".claude/gander.json",
        content=_json(_claude),
    ),
    "opencode": Tool(
        title="opencode",
        context=16384,
        start="opencode",
        path=".config/opencode/gander.json",
        content=_json(_opencode),
        environment=lambda _: {"OPENCODE_CONFIG": "$HOME/.config/opencode/gander.json"},
    ),
    "qwen": Tool(title="Qwen Code", context=16384, start="qwen --auth-type openai", environment=_openai_environment),
    "aider": Tool(
        title="aider",
        context=8192,
        start="aider --config ~/.aider.gander.yml",
        path=".aider.gander.yml",
        content=_aider,
        has_tools=False,
    ),
    "continue": Tool(
        title="Continue",
        context=8192,
        start="cn --config ~/.continue/gander.yaml",
        path=".continue/gander.yaml",
        content=_continue,
    ),
    "zed": Tool(
        title="Zed",
        context=16384,
        start="zed",
        path=".config/zed/settings.json",
        content=_json(_zed),
        is_shared=True,
        environment=lambda served: {"GANDER_API_KEY": served.sent_key},
    ),
    "openwebui": Tool(
        title="Open WebUI",
        context=4096,
        start="open-webui serve",
        environment=lambda served: {
            "OPENAI_API_BASE_URL": f"{served.url}/v1",
            "OPENAI_API_KEY": served.sent_key,
            "ENABLE_OLLAMA_API": "false",
        },
        has_tools=False,
    ),
}
