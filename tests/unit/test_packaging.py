"""What a release holds: looked for in the files themselves, and a build without kernels is none."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import outrider

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def release() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(release: Any, folder: Path, tag: str, machine: int = 62, without: str = "") -> Path:
    """As much of a wheel as is looked at."""
    path = folder / f"outrider-0.1.0-{tag}.whl"
    elf = b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*release.LIBRARIES, *release.NEEDED, "outrider-0.1.0.dist-info/licenses/LICENSE"):
            if name != without:
                archive.writestr(name, elf if name in release.LIBRARIES else b"")
    return path


def test_a_good_wheel(release: Any, tmp_path: Path) -> None:
    for tag, machine in (("py3-none-manylinux_2_34_x86_64", 62), ("py3-none-manylinux_2_17_aarch64", 183)):
        assert release.check_wheel(wheel(release, tmp_path, tag, machine)) is None


@pytest.mark.parametrize(
    ("tag", "options", "told"),
    [
        ("cp311-cp311-manylinux_2_34_x86_64", {}, "its tag is not py3-none"),
        ("py3-none-any", {}, "its tag is not py3-none"),
        ("py3-none-manylinux_2_36_x86_64", {}, "it needs glibc 2.36, and 2.34 was promised"),
        ("py3-none-manylinux_2_34_aarch64", {}, "is not compiled for aarch64"),
        ("py3-none-manylinux_2_34_x86_64", {"without": "outrider/models/native/_kernels.so"}, "it lacks .*_kernels.so"),
        ("py3-none-manylinux_2_34_x86_64", {"without": "outrider/py.typed"}, "it lacks outrider/py.typed"),
        ("py3-none-manylinux_2_34_x86_64", {"without": "outrider-0.1.0.dist-info/licenses/LICENSE"}, "its licence"),
    ],
)
def test_a_wheel_that_is_none(release: Any, tmp_path: Path, tag: str, options: Any, told: str) -> None:
    assert re.search(told, release.check_wheel(wheel(release, tmp_path, tag, **options)) or "")


def test_an_sdist_without_a_source(release: Any, tmp_path: Path) -> None:
    path = tmp_path / "outrider-0.1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
            archive.add(ROOT / name, f"outrider-0.1.0/{name}")
    assert "src/outrider/models/native/decoder.c" in release.check_sdist(path)


def test_everything_needed_is_there_to_be_packed(release: Any) -> None:
    assert [name for name in release.NEEDED if not (ROOT / "src" / name).exists()] == []


@pytest.mark.slow
def test_a_release_without_kernels_fails(tmp_path: Path) -> None:
    """Where there is no compiler; anybody else's installation goes on."""
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    for release, fails in (("1", True), ("0", False)):
        environment = {**os.environ, "CC": "/no/such/compiler", "OUTRIDER_RELEASE": release}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == fails, done.stderr[-1000:]
    assert not list(tmp_path.rglob("*.so"))


def test_the_version_is_written_once() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    written = [path for path in (ROOT / "src").rglob("*.py") if f'"{outrider.__version__}"' in path.read_text()]
    assert [path.name for path in written] == ["version.py"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {outrider.__version__}\n" in changes
