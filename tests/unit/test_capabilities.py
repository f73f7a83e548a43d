"""What a model, head or drafter can do it declares (`core/`); nothing in the package finds out by probing.

Classes of `core/` are asked by their fields. Where data or objects of others are read, the file is listed, with why.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from outrider.core.drafter import Drafter
from outrider.core.model import CachedNetwork, DraftHead, LanguageModel

PACKAGE = Path(outrider.__file__).parent
CORE = {
    node.name
    for path in sorted((PACKAGE / "core").glob("*.py"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef)
}

FOREIGN = {
    "compiled.py": "a C library's symbols",
    "cli/config.py": "commands of the command line library",
    "cli/help.py": "parameters of the command line library",
    "cli/main.py": "streams that are not text files",
    "cli/reference.py": "commands of the command line library",
    "engine/costs.py": "a table on disk that anybody may have written",
    "models/checkpoints/manifest.py": "a manifest on disk that anybody may have written",
    "models/checkpoints/safetensors_file.py": "a header on disk that anybody may have written",
    "models/checkpoints/safetensors_folder.py": "an index on disk that anybody may have written",
    "models/cpu.py": "what this version of torch knows of the processor",
    "models/cuda/compile_worker.py": "what this version of Triton has",
    "models/cuda/compiling.py": "what this version of Triton has, and whether Python is one that starts Python",
    "models/hf.py": "configurations and models of transformers",
    "models/memory.py": "what this system's C library and mmap have",
    "server/logs.py": "log records of other libraries",
    "train/corpus.py": "a corpus on disk that anybody may have written",
    "train/settings.py": "settings on disk that anybody may have written",
}
"""Where `hasattr`, `getattr` of a name written there, or a caught AttributeError is allowed."""
GIVEN = {
    "asked.py": "what people hand to LLM: a sentence says what is wrong with it",
    "request_builder.py": "what people hand to LLM: a sentence says what is wrong with it",
    "drafters/router.py": "what people's own drafters propose: a sentence says what is wrong with it",
}
"""Where `isinstance` of a class of core is."""


def probes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines of a module that look for what an object has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.alias | ast.Attribute):
            name = {ast.Name: "id", ast.alias: "name", ast.Attribute: "attr"}[type(node)]
            if getattr(node, name) == "runtime_checkable":
                yield node.lineno, "runtime_checkable"
        elif isinstance(node, ast.ExceptHandler) and node.type and "'AttributeError'" in ast.dump(node.type):
            yield node.lineno, "AttributeError"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            second = node.args[1] if len(node.args) > 1 else None
            if node.func.id == "hasattr" or (node.func.id == "getattr" and isinstance(second, ast.Constant)):
                yield node.lineno, node.func.id
            elif node.func.id in ("isinstance", "issubclass") and second is not None:
                names = {each.id for each in ast.walk(second) if isinstance(each, ast.Name)}
                if names & CORE:
                    yield node.lineno, "isinstance"


def test_nothing_is_probed() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for line, what in probes(ast.parse(path.read_text(encoding="utf-8"))):
            if what == "runtime_checkable" or name not in (GIVEN if what == "isinstance" else FOREIGN):
                found.setdefault(what, []).append(f"{name}:{line}")
    assert not found


def test_every_exception_is_still_needed() -> None:
    for names, isinstances in ((FOREIGN, False), (GIVEN, True)):
        for name in names:
            tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
            assert any((what == "isinstance") == isinstances for _, what in probes(tree)), name


@pytest.mark.parametrize(
    "source",
    [
        "from typing import runtime_checkable",
        "@typing.runtime_checkable\nclass Can(Protocol): pass",
        "if isinstance(model, LanguageModel): pass",
        "if isinstance(drafter, Drafter | str): pass",
        "if hasattr(drafter, name): pass",
        "read = getattr(drafter, 'read', None)",
        "try:\n    drafter.read()\nexcept (ValueError, AttributeError):\n    pass",
    ],
)
def test_a_probe_is_seen(source: str) -> None:
    assert list(probes(ast.parse(source)))


def test_the_least_one_can_do() -> None:
    """What must be written for each; all else has a default."""
    assert Drafter.__abstractmethods__ == {"propose"}
    cache = {"open", "close", "length", "commit", "rollback"}
    assert CachedNetwork.__abstractmethods__ == cache
    assert LanguageModel.__abstractmethods__ == DraftHead.__abstractmethods__ == cache | {"forward"}
