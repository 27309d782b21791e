"""Imports point one way: server to decoding, and inside decoding from the engine down to the data."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = [  # a room may import from itself and those after it
    ("audit", "bench", "training"),
    ("worker",),
    ("engine",),
    ("drafting",),
    ("sampling",),
    ("model",),
    ("attention",),
    ("cache",),
    ("stores",),
    ("costs",),
    ("core",),
    ("config", "errors"),
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


def test_inside_decoding_nothing_imports_a_room_above_it() -> None:
    rank = {name: depth for depth, names in enumerate(ROOMS) for name in names}
    for path in (ROOT / "decoding").rglob("*.py"):
        room = path.relative_to(ROOT / "decoding").with_suffix("").parts[0]
        if room == "__init__":
            continue
        assert room in rank, path
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "decoding" and len(parts) > 1:
                assert rank[parts[1]] >= rank[room], (path, name)


def test_the_engine_imports_where_the_servers_libraries_are_missing() -> None:
    blocked = "fastapi uvicorn starlette pydantic prometheus_client typer"
    program = f"import sys\nfor name in {blocked.split()!r}: sys.modules[name] = None\nimport decoding.engine.engine\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
