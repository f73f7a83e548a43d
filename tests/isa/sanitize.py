"""The kernels' own tests (products.c, passes.c) under AddressSanitizer and UndefinedBehaviorSanitizer: `make sanitize`.

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

from run import build, compilers

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
            done = subprocess.run([str(binary)], capture_output=True, text=True, env={**os.environ, **OPTIONS})
            print(f"{name}: {'sound' if not done.returncode else 'NOT SOUND'}\n{done.stdout}{done.stderr[-4000:]}")
            return int(done.returncode != 0)
    print("no compiler here has the sanitizers; install gcc or clang with its runtime")
    return 1


if __name__ == "__main__":
    sys.exit(main())
