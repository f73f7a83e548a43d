"""Cycles that the inner loops of the aarch64 kernels take on CPUs that are not at hand, as llvm-mca estimates them.

    python benchmarks/tile_estimates.py --cpu neoverse-v1 --cpu neoverse-v2 --compiler clang-19

An estimate counts instructions and units, with all data in the nearest cache: it says where arithmetic would begin to
take longer than reading the weights, no more. Needs an aarch64 compiler (GCC 10 or Clang 12, or newer) and llvm-mca.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1] / "src" / "outrider" / "models" / "native"
INPUTS, COLUMNS = 32, 16
"""What a figure is for: 32 inputs of all rows times as many weights of a panel's 16 columns."""
PRODUCTS = {"sdot": 16, "smmla": 32, "fmla": 4, "bfmmla": 16}
"""Of one instruction."""
_RUNS = 200
_BEGIN = """#include "isa.h"
#define WITH_DOTPROD
#define WITH_I8MM
#define WITH_BF16
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm,bf16"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm+bf16")
#endif
#include "pass.h"
"""
_END = """
#if defined(__clang__)
#pragma clang attribute pop
#endif
"""


@dataclass(frozen=True)
class Tile:
    """A function whose innermost loop multiplies `rows` rows with `columns` columns by this instruction."""

    instruction: str
    rows: int
    columns: int
    code: str

    @property
    def name(self) -> str:
        return f"{self.instruction}_{self.rows}"


def tiles() -> list[Tile]:
    found = []

    def add(instruction: str, rows: int, columns: int, given: str, call: str) -> None:
        code = f"void {instruction}_{rows}({given}, float *y) {{ {call}; }}"
        found.append(Tile(instruction, rows, columns, code))

    int8 = "const int8_t *w, const int8_t *x, int depth, int size"
    wide, narrow = (f"const char *w, const {kind} *x, int n, int depth" for kind in ("float", "uint16_t"))
    for rows in range(1, 5):
        add("sdot", rows, 16, int8, f"block_sums(w, 0, 0, x, depth, size, {rows}, y)")
        add("fmla", rows, 16, wide, f"kernel(w, 0, x, n, depth, {rows}, 1, 1, y)")
    for pairs in range(1, 6):
        quads = 4 if pairs <= 2 else 2
        add("smmla", 2 * pairs, 4 * quads, int8, f"paired_sums(w, x, depth, size, {pairs}, 0, {quads}, y)")
        if pairs <= 4:
            add("bfmmla", 2 * pairs, 4 * quads, narrow, f"kernel_bf16(w, x, n, n, depth, {pairs}, {quads}, y)")
    return found


def loop(assembly: str, tile: Tile) -> list[str]:
    """The instructions of the innermost loop with the tile's own."""
    body = assembly.split(f"\n{tile.name}:")[1].split(f".size\t{tile.name}")[0].splitlines()
    labels: dict[str, int] = {}
    found: list[list[str]] = []
    for i, line in enumerate(body):
        if label := re.match(r"\s*(\.L\w+|\d+):", line):
            labels[label[1]] = i
        jump = re.search(r"\b(?:b\.?[a-z]*|cbn?z|tbn?z)\b.*?(\.L\w+|\d+b)\s*$", line)
        if jump and (start := labels.get(jump[1].rstrip("b"))) is not None:
            found.append(body[start + 1 : i])
    inner = min((part for part in found if any(tile.instruction in line for line in part)), key=len)
    return [line for line in inner if re.match(r"\s+[a-z]", line)]


def cycles(instructions: list[str], tile: Tile, cpu: str, mca: str, folder: Path) -> float:
    """Of INPUTS inputs and COLUMNS columns."""
    path = folder / "loop.s"
    path.write_text("\n".join(instructions) + "\n")
    command = [mca, "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+dotprod,+i8mm,+bf16", f"-iterations={_RUNS}"]
    said = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True).stdout
    total = re.search(r"Total Cycles:\s+(\d+)", said)
    assert total is not None, said
    count = sum(bool(re.search(rf"\b{tile.instruction}\b", line)) for line in instructions)
    inputs = count * PRODUCTS[tile.instruction] / (tile.rows * tile.columns)
    return int(total[1]) / _RUNS * INPUTS * COLUMNS / (inputs * tile.columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="append", help="as llvm-mca calls it")
    parser.add_argument("--compiler", default="gcc")
    parser.add_argument("--mca", default="llvm-mca", help="of LLVM 17 or newer")
    options = parser.parse_args()
    cpus = options.cpu or ["neoverse-n2", "neoverse-v1", "neoverse-v2"]
    print(f"{'cycles of 32 inputs x 16 columns':34}", *(f"{cpu:>12}" for cpu in cpus))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiles.c").write_text(_BEGIN + "\n".join(tile.code for tile in tiles()) + _END)
        flags = ["-O3", "-ffp-contract=off", "-w", "-S", "-I", str(NATIVE), "-o", str(folder / "tiles.s")]
        subprocess.run([options.compiler, *flags, str(folder / "tiles.c")], check=True)
        assembly = (folder / "tiles.s").read_text()
        for tile in tiles():
            own = loop(assembly, tile)
            spilled = sum("[sp" in line for line in own)
            figures = (f"{cycles(own, tile, cpu, options.mca, folder):12.1f}" for cpu in cpus)
            print(f"{tile.instruction:7} {tile.rows:2} rows {f'{spilled} spilled' if spilled else '':19}", *figures)


if __name__ == "__main__":
    main()
