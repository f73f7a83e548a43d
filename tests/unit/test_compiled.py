"""Compiled libraries that do not fit are refused in one sentence, before they touch anything."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outrider import compiled
from outrider.errors import ModelError
from outrider.models.native import library as kernels
from outrider.sampling.native import sampler

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")

SOURCE = """#include <stdint.h>
typedef struct {{ const char *name; int64_t bytes; }} Size;
const Size *outrider_sizes(void) {{ static const Size sizes[] = {{{{"Pair", {size}}}, {{0, 0}}}}; return sizes; }}
const char *outrider_build(void) {{ return "{build}"; }}
"""


class Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int64), ("second", ctypes.c_int64)]


def build(folder: Path, source: str, name: str = "_toy.so") -> None:
    """The library alone: its source lies elsewhere."""
    elsewhere = folder.parent / f"{folder.name}.c"
    elsewhere.write_text(source)
    folder.mkdir(exist_ok=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / name), str(elsewhere)], check=True)


@needs_compiler
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_library_that_fits(tmp_path: Path, by_hand: bool) -> None:
    folder = tmp_path / "native"
    assert compiled.load(folder, "_toy", (Pair,)) is None
    build_id = compiled.UNKNOWN if by_hand else compiled.digest(folder)
    build(folder, SOURCE.format(size=16, build=build_id))
    library = compiled.load(folder, "_toy", (Pair,))
    assert library is not None
    assert compiled.built_of(library) == build_id


@needs_compiler
@pytest.mark.parametrize(
    ("source", "told"),
    [
        (SOURCE.format(size=24, build="unknown"), "its Pair has 24 bytes where 16 are expected"),
        (SOURCE.format(size=16, build="0123456789abcdef"), r"built of other sources \(0123456789abcdef\)"),
        (SOURCE.replace("Pair", "Other").format(size=16, build="unknown"), "its Pair has no bytes"),
        ("int outrider_has(int kernels) { return kernels; }", "before libraries told the sizes"),
    ],
    ids=["another size", "other sources", "another structure", "an old one"],
)
def test_a_stale_library_is_refused(tmp_path: Path, source: str, told: str) -> None:
    build(tmp_path / "native", source)
    with pytest.raises(
        ModelError, match=f"_toy.so does not fit this version of Outrider: .*{told}.*build it again"
    ) as no:
        compiled.load(tmp_path / "native", "_toy", (Pair,))
    assert "\n" not in str(no.value)


@needs_compiler
def test_whoever_runs_it_is_told_so(tmp_path: Path) -> None:
    """A whole process over a package whose kernels are stale: one sentence, no crash."""
    root = Path(compiled.__file__).parent
    ignored = shutil.ignore_patterns("model.safetensors", "__pycache__", "*.so")
    shutil.copytree(root, tmp_path / "outrider", ignore=ignored)
    build(tmp_path / "outrider" / "models" / "native", SOURCE.format(size=8, build="unknown"), "_kernels.so")
    script = "from outrider.models.native.library import library; library()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert "ModelError: " in done.stderr
    assert "its Shape has no bytes where" in done.stderr


def test_of_several_the_one_built_last_counts(tmp_path: Path) -> None:
    for age, suffix in enumerate((".so", ".abi3.so")):
        path = tmp_path / f"_toy{suffix}"
        path.touch()
        os.utime(path, (1000 + age, 1000 + age))
    assert compiled.find(tmp_path, "_toy") == tmp_path / "_toy.abi3.so"


def test_every_structure_is_told_of() -> None:
    """Both sides mirror each other by hand; none is forgotten."""
    mirrored = {
        each for each in vars(kernels).values() if isinstance(each, type) and issubclass(each, ctypes.Structure)
    }
    assert mirrored - {ctypes.Structure} == set(kernels.SHARED)
    assert sampler.library() is None or kernels.library() is not None


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;")
    first = compiled.digest(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing")
    assert compiled.digest(tmp_path) == first
    (tmp_path / "a.c").write_text("int b;")
    second = compiled.digest(tmp_path)
    (tmp_path / "a.c").rename(tmp_path / "b.c")
    assert len({first, second, compiled.digest(tmp_path)}) == 3
