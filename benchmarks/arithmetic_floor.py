"""The least a pass of some rows can take on this CPU with AVX2: its multiplications alone, from registers.

    python benchmarks/arithmetic_floor.py [--threads 2] [--rows 1,4,8,16] [--rounds 40] [--out FILE.json]

All threads at once run chains of fused multiply-adds (bf16, widened), or of what int8 takes without VNNI: two
multiplications and an addition for 32 products. Nothing is loaded, so no tile can be faster. Given are products a
second, the best of short turns (a busy machine disturbs only some), and milliseconds for the default model's weights:
what `pass_rows.py` measures with OUTRIDER_KERNELS=avx2 can be held against that. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from outrider.provenance import provenance

WEIGHTS = 134_515_008
TURNS = 2_000_000
SOURCE = r"""
#include <immintrin.h>
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
void bf16(long turns) { /* 12 sums of 8 */
    __m256 sums[12], a = _mm256_set1_ps(1e-9f);
    for (int i = 0; i < 12; i++) sums[i] = a;
    while (turns--) {
#define STEP(I) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[I]) : "x"(a));
        TWELVE(STEP)
#undef STEP
    }
}
void int8(long turns) { /* 12 times 32 products */
    __m256i sums[12], a = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    for (int i = 0; i < 12; i++) sums[i] = a;
    while (turns--) {
#define STEP(I) { __m256i t; __asm__ volatile("vpmaddubsw %3, %3, %1\n vpmaddwd %2, %1, %1\n vpaddd %1, %0, %0" \
                                              : "+x"(sums[I]), "=&x"(t) : "x"(ones), "x"(a)); }
        TWELVE(STEP)
#undef STEP
    }
}
"""
PRODUCTS = {"bf16": 12 * 8, "int8": 12 * 32}
"""Of a turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,4,8,16")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [int(count) for count in options.rows.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "floor.c"), Path(folder, "floor.so")
        source.write_text(SOURCE)
        command = ["cc", "-O2", "-mavx2", "-mfma", "-shared", "-fPIC", str(source), "-o", str(built)]
        if subprocess.run(command, check=False).returncode:
            sys.exit("no C compiler that makes x86 code; this is about x86 alone")
        library = ctypes.CDLL(str(built))
    found = {}
    with ThreadPoolExecutor(options.threads) as pool:
        for name, products in PRODUCTS.items():
            run = getattr(library, name)
            run.argtypes, run.restype = [ctypes.c_long], None
            taken = []
            for _ in range(options.rounds):
                started = perf_counter()
                list(pool.map(run, [TURNS] * options.threads))
                taken.append(perf_counter() - started)
            rate = products * TURNS * options.threads / min(taken)
            found[name] = {"products_per_second": rate, "ms": {n: 1e3 * n * WEIGHTS / rate for n in rows}}
            shown = "  ".join(f"{n}: {ms:.1f}" for n, ms in found[name]["ms"].items())
            print(f"{name}: {rate / 1e9:.0f} billion products a second; at least, in ms, for rows {shown}")
    if options.out:
        kept = {"provenance": provenance(), "threads": options.threads, "floor": found}
        options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
