"""The agents that `make test-agents` runs: how each is started, and what the scripted model answers it.

Every agent gets the same task. Its script uses the tools that its pinned version offers: it reads a file, edits it,
runs a command and says that it is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FILE = "greeting.py"
WRONG, RIGHT = 'print("helo")', 'print("hello")'
TASK = f"Read {FILE}, correct the word that it prints, run it, and say what it printed."
RUN = f"python3 {FILE} > said.txt"
DONE = "Last step: the program prints hello now."
THOUGHT = "<think>\nWhat is left to do?\n</think>\n\n"
OTHERWISE = "A greeting"  # to what agents ask beside the task, as for a title


@dataclass(frozen=True)
class Agent:
    """`gander connect` points it at the server; this is what it needs beside. Placeholders are <folder>, where it
    works, and <home>.

    needs: what only prompts of the task have; calls: name and arguments of each; replies: texts, where it has no tools;
    command: after the program's path; files: by their paths below the home.
    """

    program: str
    command: tuple[str, ...]
    needs: str
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    replies: tuple[str, ...] = ()

    def script(self) -> list[tuple[str, str]]:
        """The model's replies, each after the words by which a prompt shows that it has been given."""
        calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in self.calls]
        steps = [*(f"\n<tool_call>\n{call}\n</tool_call>" for call in calls), *self.replies]
        marks = [f"Step {number} of the work." for number in range(1, len(steps) + 1)]
        said = [(mark, f"{THOUGHT}{mark}{step}") for mark, step in zip(marks, steps, strict=True)]
        return [*said, (DONE, f"{THOUGHT}{DONE}")]


OPENCODE = {"autoupdate": False, "share": "disabled", "permission": {"*": "allow"}}
CODEX = """approval_policy = "never"
sandbox_mode = "danger-full-access"
[analytics]
enabled = false
"""
PATCH = f"*** Begin Patch\n*** Update File: {FILE}\n@@\n-{WRONG}\n+{RIGHT}\n*** End Patch"
CLAUDE_OFF = ("DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
AIDER_EDIT = f"\n\n{FILE}\n```python\n<<<<<<< SEARCH\n{WRONG}\n=======\n{RIGHT}\n>>>>>>> REPLACE\n```\n"

AGENTS = {
    "claude": Agent(
        program="claude",
        command=(
            "-p",
            TASK,
            "--settings",
            "<home>/.claude/gander.json",
            "--permission-mode",
            "acceptEdits",
            "--allowedTools",
            "Bash Read Edit",
        ),
        needs='"name": "Edit"',
        environment=dict.fromkeys(CLAUDE_OFF, "1"),
        calls=(
            ("ToolSearch", {"query": "select:WebFetch"}),
            ("Read", {"file_path": f"<folder>/{FILE}"}),
            ("Edit", {"file_path": f"<folder>/{FILE}", "old_string": "helo", "new_string": "hello"}),
            ("Bash", {"command": RUN, "description": "Run the program"}),
        ),
    ),
    "codex": Agent(
        program="codex",
        command=("--profile", "gander", "exec", "--skip-git-repo-check", TASK),
        needs='"name": "exec_command"',
        files={".codex/config.toml": CODEX},
        calls=(
            ("exec_command", {"cmd": f"cat {FILE}"}),
            ("multi_agent_v1.close_agent", {"target": "none"}),
            ("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF"}),
            ("exec_command", {"cmd": RUN}),
        ),
    ),
    "opencode": Agent(
        program="opencode",
        command=("run", TASK),
        needs='"name": "edit"',
        environment={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files={".config/opencode/opencode.json": OPENCODE},
        calls=(
            ("read", {"filePath": f"<folder>/{FILE}"}),
            ("edit", {"filePath": f"<folder>/{FILE}", "oldString": "helo", "newString": "hello"}),
            ("bash", {"command": RUN, "description": "Run the program"}),
        ),
    ),
    "qwen": Agent(
        program="qwen",
        command=("--auth-type", "openai", "--yolo", "-p", TASK),
        needs='"name": "edit"',
        files={".qwen/settings.json": {"telemetry": {"enabled": False}, "privacy": {"usageStatisticsEnabled": False}}},
        calls=(
            ("read_file", {"file_path": f"<folder>/{FILE}"}),
            ("edit", {"file_path": f"<folder>/{FILE}", "old_string": "helo", "new_string": "hello"}),
            ("run_shell_command", {"command": RUN, "is_background": False}),
        ),
    ),
    "aider": Agent(
        program="aider",
        command=(
            *("--config", "<home>/.aider.gander.yml", "--no-check-update", "--analytics-disable"),
            *("--yes-always", "--no-auto-commits", "--no-git", "--edit-format", "diff", "--test-cmd", RUN),
            *("--auto-test", "--message", TASK, FILE),
        ),
        needs=FILE,
        replies=(AIDER_EDIT,),
    ),
}
