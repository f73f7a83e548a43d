"""Tests lie in a folder by what they need, and take what they share from tests/support."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))


def test_every_test_is_in_a_folder() -> None:
    assert {path.parent.name for path in FILES} == {"unit", "model", "gpu", "server", "clients"}
    names = [path.name for path in FILES]
    assert len(set(names)) == len(names), "pytest imports them by name"


def test_no_test_is_imported_by_another() -> None:
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                assert not any(str(name).startswith("test_") for name in names), f"{path}:{node.lineno}"


def test_unit_tests_need_no_model() -> None:
    needed = {"default_checkpoint", "default_model_dir", "truncated_model_dir", "cut_checkpoint"}
    for path in (TESTS / "unit").glob("*.py"):
        code = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        assert not needed & {node.arg for node in code if isinstance(node, ast.arg)}, path
