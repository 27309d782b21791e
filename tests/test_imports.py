"""Imports point one way: server to decoding, and inside decoding from the engine down to the data."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYERS = [  # a module may import from its own layer and those below it
    {"worker"},
    {"engine"},
    {"choosing", "scheduler", "memory", "admission", "tracing"},
    {"running", "draft_model", "calibrate"},
    {"session", "tally", "drafters", "logprobs"},
    {"seat", "earnings"},
    {"budget", "stores", "sampling"},
]


def imports_of(path: Path) -> set[str]:
    """Dotted names imported at any level of the file, `from a import b` as both a and a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_decoding_knows_nothing_of_the_server() -> None:
    forbidden = {"server", "fastapi", "uvicorn", "starlette", "asyncio", "pydantic", "prometheus_client"}
    for path in (ROOT / "decoding").rglob("*.py"):
        roots = {name.split(".")[0] for name in imports_of(path)}
        assert not roots & forbidden, path


def test_inside_decoding_nothing_imports_a_layer_above_it() -> None:
    layer_of = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    for path in (ROOT / "decoding").rglob("*.py"):
        noun = path.relative_to(ROOT / "decoding").with_suffix("").parts[0]
        if noun in {"bench", "training", "audit", "tune_tree"}:
            continue
        own = layer_of.get(noun, len(LAYERS))
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "decoding" and len(parts) > 1:
                assert layer_of.get(parts[1], len(LAYERS)) >= own, (path, name)


def test_the_engine_imports_where_the_servers_libraries_are_missing() -> None:
    blocked = "fastapi uvicorn starlette pydantic prometheus_client typer"
    program = (
        f"import sys\nfor name in {blocked.split()!r}: sys.modules[name] = None\nimport decoding, decoding.engine\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
