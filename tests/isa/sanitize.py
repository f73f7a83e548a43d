"""The C code's own tests (products.c, passes.c, drafts.c, lookups.c) under AddressSanitizer and
UndefinedBehaviorSanitizer, and those on several threads under ThreadSanitizer, too: `make sanitize`.

On every instruction set that this CPU has, by the first compiler found that brings the sanitizers along: some minutes.
The first fault ends the run, with where it was.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from run import HERE, build, compilers

LOOKUP = HERE.parents[1] / "src" / "outrider" / "drafters" / "native"

THREADS = ["-g", "-fsanitize=thread"]
FLAGS = ["-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}  # the tests free nothing


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for compiler in compilers(platform.machine()):
            name = Path(compiler[0]).name
            binary = Path(folder) / name
            if trouble := build([*compiler, *FLAGS], binary, level="-O1"):
                print(f"{name}: not tried, it has no sanitizers\n{trouble[-400:]}")
                continue
            lookups = Path(folder) / "lookups"
            command = [*compiler, *FLAGS, "-O1", "-ffp-contract=off", "-I", str(LOOKUP), str(HERE / "lookups.c")]
            subprocess.run([*command, "-o", str(lookups)], check=True)
            kernels = sound(name, binary, {**os.environ, **OPTIONS})
            lookup = sound(f"{name}, lookup", lookups, {**os.environ})
            if trouble := build([*compiler, *THREADS], binary, level="-O1"):
                print(f"{name}: threads not tried, it has no sanitizer for them\n{trouble[-400:]}")
                return 1
            return int(not (sound(f"{name}, threads", binary, {**os.environ}) and lookup and kernels))
    print("no compiler here has the sanitizers; install gcc or clang with its runtime")
    return 1


def sound(name: str, binary: Path, environment: dict[str, str]) -> bool:
    done = subprocess.run([str(binary)], capture_output=True, text=True, env=environment)
    print(f"{name}: {'sound' if not done.returncode else 'NOT SOUND'}\n{done.stdout}{done.stderr[-4000:]}")
    return not done.returncode


if __name__ == "__main__":
    sys.exit(main())
