"""Matrix products, passes and drafts on every instruction set that this machine has or can emulate: `make test-isa`.

products.c, passes.c and drafts.c are built by every compiler found (GCC and Clang, for this CPU and for the other kind)
and run on this CPU and on those qemu-user emulates; what no emulator runs (AVX-512, VNNI, AMX) is compiled against
emulated/immintrin.h, which says in C what those instructions do. Each instruction set must agree with the definition,
and all of them on one hash.
Needs qemu-user and a cross compiler to go beyond this CPU:
`apt install qemu-user gcc-x86-64-linux-gnu gcc-aarch64-linux-gnu`.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "src" / "outrider" / "models" / "native"
sys.path.insert(0, str(HERE.parents[1] / "src"))

from outrider.models.native.library import KERNELS  # noqa: E402

EMULATED = {
    "aarch64": ("cortex-a57", "neoverse-n1", "max"),
    "x86_64": ("Nehalem", "Haswell", "max"),
}
"""CPUs to emulate: without and with the instructions that matter, as far as qemu knows them."""

_VPDPBUSD = "sums = _mm512_dpbusd_epi32(sums, weights, inputs);"
_VPDPBUSD_AT = "sums = _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(*(const Four *)inputs));"
_VFMADD231PS = "sum = fused_part(a, b, sum);"
"""What stands in the kernels as the instructions themselves."""


def compilers(kind: str) -> list[list[str]]:
    """Commands that build for this kind of CPU."""
    own = kind == platform.machine()
    cross = shutil.which("gcc") if own else shutil.which(f"{kind.replace('_', '-')}-linux-gnu-gcc")
    cross = cross or shutil.which(f"{kind}-linux-gnu-gcc")
    found = [[cross]] if cross else []
    clang = next((path for name in ("clang-19", "clang") if (path := shutil.which(name))), None)
    if clang and cross:
        found.append([clang] if own else [clang, f"--target={kind}-linux-gnu"])
    return found


def build(compiler: list[str], target: Path, kernels: Path = NATIVE, level: str = "-O3") -> str | None:
    """None, or why not."""
    sources = [HERE / f"{name}.c" for name in ("products", "passes", "drafts")]
    sources += [kernels / f"{name}.c" for name in ("decoder", "pack", "pool")]
    sources += sorted(kernels.glob("isa_*.c"))
    objects = []
    for source in sources:
        objects.append(target.with_name(f"{source.stem}.o"))
        flags = [level, "-ffp-contract=off", "-Wno-psabi", "-w", "-pthread", "-I", str(kernels)]
        command = [*compiler, *flags, "-c", str(source)]
        done = subprocess.run([*command, "-o", str(objects[-1])], capture_output=True, text=True)
        if done.returncode:
            return done.stderr
    link = [*compiler, "-pthread", *map(str, objects), "-lm", "-o", str(target)]
    done = subprocess.run(link, capture_output=True, text=True)
    return done.stderr if done.returncode else None


def emulated(folder: Path) -> Path:
    """The kernels of x86, told that the CPU has everything, and to use no instruction of it."""
    folder.mkdir()
    for source in NATIVE.glob("*.[ch]"):
        text = source.read_text()
        text = re.sub(r"(?m)^#pragma GCC target.*$", "", text)
        text = text.replace("__attribute__((target(FEATURES)))", "")
        text = re.sub(
            r"(?m)^#define UNROLL .*$", "#define UNROLL", text
        )  # compilers need minutes, and nothing is faster
        text = re.sub(r'__asm__\(""[^;]*;', "", text)  # hints to a compiler that has such registers
        text = re.sub(r'__asm__\("vpdpbusd [^;]*1to16[^;]*;', _VPDPBUSD_AT, text)
        text = re.sub(r'__asm__\("vpdpbusd [^;]*;', _VPDPBUSD, text)
        text = re.sub(r'__asm__\("vfmadd231ps [^;]*;', _VFMADD231PS, text)
        text = re.sub(r"__builtin_cpu_supports\(\"[^\"]*\"\)|(?<!static int )have_\w+\(\)", "1", text)
        (folder / source.name).write_text(text)
    return folder


def main() -> int:
    hashes: dict[str, list[str]] = {}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for kind, cpus in EMULATED.items():
            emulator = shutil.which(f"qemu-{kind}")
            for compiler in compilers(kind):
                name = Path(compiler[0]).name
                binary = Path(folder) / f"{kind}-{name}"
                if trouble := build(compiler, binary):
                    print(f"{kind} {name}: does not compile\n{trouble}")
                    failed = True
                    continue
                own = kind == platform.machine()
                runs = [("this CPU", [str(binary)])] if own else []
                libraries = [] if own else ["-L", f"/usr/{kind}-linux-gnu"]
                if emulator:
                    runs += [(cpu, [emulator, *libraries, "-cpu", cpu, str(binary)]) for cpu in cpus]
                if kind == "x86_64" and "gcc" in name and (own or emulator):
                    plain = Path(folder) / "plain"
                    written_out = [*compiler, "-I", str(HERE / "emulated")]
                    if trouble := build(written_out, plain, emulated(Path(folder) / "emulated"), "-O2"):
                        print(f"written out in C: does not compile\n{trouble}")
                        failed = True
                    else:
                        runs.append(("written out in C", [*([] if own else [str(emulator), *libraries]), str(plain)]))
                for cpu, command in runs:
                    done = subprocess.run(command, capture_output=True, text=True)
                    failed |= bool(done.returncode)
                    for line in done.stdout.splitlines():
                        number, _, rest = line.partition(" ")
                        here = f"{kind} {name} {cpu}"
                        if number.isdigit():
                            hashes.setdefault(rest, []).append(here)
                            print(f"{here:<40} {KERNELS[int(number)]:<8} {rest}")
                        else:
                            print(f"{here:<40} {line}")
                    if done.returncode and not done.stdout:
                        print(f"{kind} {name} {cpu}: ended with {done.returncode} {done.stderr[-200:]}")
            if not compilers(kind) or (kind != platform.machine() and not emulator):
                print(f"{kind}: not tried, for want of a compiler or of qemu-{kind}")
    if len(hashes) != 1:
        print("int8 products, or those of quantised files, differ between instruction sets")
    return int(failed or len(hashes) != 1)


if __name__ == "__main__":
    sys.exit(main())
