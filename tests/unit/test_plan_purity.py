"""Planning is pure and light: no I/O, no clock, no environment, no heavy import."""

import ast
import subprocess
import sys
from pathlib import Path

import hybrid_serve.plan

FORBIDDEN = {"os", "io", "time", "random", "logging", "pathlib", "socket", "subprocess", "ray", "torch", "vllm"}


def test_plan_modules_import_nothing_that_touches_the_world() -> None:
    modules = sorted(Path(hybrid_serve.plan.__file__).parent.glob("*.py"))
    assert len(modules) > 8
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & FORBIDDEN, f"{module.name} imports {names}"
            ours = [name.split(".")[1] for name in names if name.startswith("hybrid_serve.")]
            upward = set(ours) - {"facts", "plan", "sizes"}
            assert not upward, f"{module.name} imports upward: {upward}"


def test_the_command_line_loads_neither_torch_nor_vllm_nor_ray() -> None:
    heavy = ("torch", "vllm", "ray", "transformers")
    code = f"import hybrid_serve.cli, sys; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
