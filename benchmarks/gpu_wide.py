# ruff: noqa
"""Wide kernels on a GPU beside those of few rows: the same bits, and how fast.

    python benchmarks/gpu_wide.py [section ...]

One line of JSON per finding. Each section runs in a process of its own, so that one that breaks the device does not end
the others; a configuration that does not compile or fit is told and passed over.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.testing import do_bench, do_bench_cudagraph
from triton.tools.tensor_descriptor import TensorDescriptor

import gpu_wide_before as before
from gpu_wide_tma import wide_tma_kernel
from outrider.models.cuda.kernels.attention import BLOCK, TILE, attend_kernel
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.kernels.linear import ADD, BLOCK_N, GATED, STORE, linear_kernel
from outrider.models.cuda.kernels.prompt import prompt_kernel
from outrider.models.cuda.kernels.wide import wide_kernel
from outrider.models.cuda.tiling import depth_split, tiling

GPU = torch.device("cuda")
LOG2E = 1 / math.log(2)
SHAPES = {  # kind, columns, depth
    "8b": [("store", 6144, 4096), ("add", 4096, 4096), ("gated", 14336, 4096), ("add", 4096, 14336)],
    "135m": [("store", 960, 576), ("add", 576, 576), ("gated", 1536, 576), ("add", 576, 1536)],
}
HEADS = {"8b": (32, 8, 128), "135m": (9, 3, 64)}


def say(**found: object) -> None:
    print(json.dumps(found), flush=True)


DTYPE = torch.bfloat16


def random(*shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=GPU) * scale).to(dtype or DTYPE)


def attempt(what: dict[str, object], work: Callable[[], dict[str, object]]) -> None:
    try:
        say(**what, **work())
    except Exception as error:
        say(**what, error=f"{type(error).__name__}: {error}"[:200])
        torch.cuda.synchronize()


def same(found: Iterable[Tensor], expected: Iterable[Tensor]) -> object:
    """True, or the share of numbers that differ, by tensor."""
    shares = [float((a != b).float().mean()) for a, b in zip(found, expected, strict=True)]
    return True if not any(shares) else shares


# dots --------------------------------------------------------------------------------------------------------------


@triton.jit
def dot_kernel(a_ptr, b_ptr, y_ptr, N, K, M: tl.constexpr, C: tl.constexpr, D: tl.constexpr, TURNED: tl.constexpr):
    m, n, k = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * C + tl.arange(0, C), tl.arange(0, D)
    if TURNED:
        acc = tl.zeros([C, M], dtype=tl.float32)
    else:
        acc = tl.zeros([M, C], dtype=tl.float32)
    for start in range(0, K, D):
        a = tl.load(a_ptr + m[:, None] * K + start + k[None, :])
        b = tl.load(b_ptr + n[:, None] * K + start + k[None, :])
        if TURNED:
            acc = tl.dot(b, tl.trans(a), acc)
        else:
            acc = tl.dot(a, tl.trans(b), acc)
    if TURNED:
        acc = tl.trans(acc)
    tl.store(y_ptr + m[:, None] * N + n[None, :], acc)


@triton.jit
def fold_kernel(x_ptr, y_ptr, z_ptr, M: tl.constexpr, LIBRARY: tl.constexpr):
    from_rows = tl.program_id(0) * M + tl.arange(0, M)
    x = tl.load(x_ptr + from_rows[:, None] * 128 + tl.arange(0, 128)[None, :])
    tl.store(y_ptr + from_rows, tl.sum(x, axis=1) if LIBRARY else _fold(x, M))
    tl.store(z_ptr + from_rows, tl.max(x, axis=1))


@triton.jit
def _fold(x, M: tl.constexpr):
    for level in tl.static_range(7):
        x = tl.sum(tl.reshape(x, [M, 2, 1 << (6 - level)]), axis=1)
    return tl.reshape(x, [M])


def dots() -> None:
    """Instructions for 16 rows and for 64 and more; either operand the wide one; sums by the library and by halves."""
    for dtype in (torch.bfloat16, torch.float16):
        for depth in (128, 4096):
            a, b = random(256, depth, dtype=dtype), random(512, depth, dtype=dtype, scale=0.05)
            expected = None
            tiles = (
                (16, 64, 64, True, 4, 4), (16, 64, 128, True, 4, 3), (16, 128, 128, False, 4, 2), (32, 128, 64, False, 4, 3),
                (64, 64, 64, False, 4, 3), (64, 128, 64, False, 4, 3), (128, 128, 64, False, 8, 3), (128, 128, 32, False, 8, 3),
                (128, 256, 64, False, 8, 3), (256, 128, 64, True, 8, 3), (128, 128, 64, True, 8, 3), (64, 256, 64, True, 4, 3),
            )  # fmt: skip
            if depth == 128:
                y = torch.zeros(256, 512, device=GPU)
                with ThreadPoolExecutor(16) as pool:
                    list(pool.map(lambda t: _quietly(lambda: dot_kernel[(256 // t[0], 512 // t[1])](
                        a, b, y, 512, depth, M=t[0], C=t[1], D=t[2], TURNED=t[3], num_warps=t[4], num_stages=t[5])), tiles))
            for m, c, d, turned, warps, stages in tiles:

                def run(m=m, c=c, d=d, turned=turned, warps=warps, stages=stages) -> dict[str, object]:
                    nonlocal expected
                    y = torch.full((256, 512), torch.nan, device=GPU)
                    dot_kernel[(256 // m, 512 // c)](
                        a, b, y, 512, depth, M=m, C=c, D=d, TURNED=turned, num_warps=warps, num_stages=stages
                    )
                    expected = y if expected is None else expected
                    return {"bits": same([y], [expected])}

                attempt({"section": "dots", "dtype": str(dtype)[6:], "depth": depth,
                         "tile": f"{m}x{c}x{d}{' turned' if turned else ''} w{warps} s{stages}"}, run)  # fmt: skip
            say(section="dots", dtype=str(dtype)[6:], depth=depth, tile="cublas", bits=same([a @ b.T], [expected.to(dtype)]))
    x = random(256, 128, dtype=torch.float32)
    for library in (True, False):
        found = []
        for m, warps in ((16, 4), (64, 4), (128, 8), (128, 4)):
            y, z = torch.zeros(256, device=GPU), torch.zeros(256, device=GPU)
            fold_kernel[(256 // m,)](x, y, z, M=m, LIBRARY=library, num_warps=warps)
            found.append((y, z))
        for f in found[1:]:
            say(section="fold", library=library, bits=same(f, found[0]))


# linear ------------------------------------------------------------------------------------------------------------


class Product:
    """Inputs and outputs of one product, and its launches."""

    def __init__(self, kind: str, columns: int, depth: int, rows: int) -> None:
        self.kind, self.columns, self.depth, self.rows = kind, columns, depth, rows
        self.gated, self.add = kind == "gated", kind == "add"
        self.split = 1 if self.gated else depth_split(columns, depth)
        self.x = random(rows, depth)
        self.w = random((2 if self.gated else 1) * columns, depth, scale=depth**-0.5)
        self.source = random(rows, columns)
        self.gain = random(columns, dtype=torch.float32)
        self.tiles = -(-(columns if self.add else depth) // BLOCK_N)
        self.squares = random(rows, self.tiles, dtype=torch.float32).square() * BLOCK_N
        tiles = -(-columns // BLOCK_N) * -(-rows // 16)
        self.partial = torch.zeros(tiles * self.split * BLOCK_N * 16 * 2 if self.split > 1 else 1, device=GPU)
        self.counter = torch.zeros(tiles, dtype=torch.int32, device=GPU)
        self.renew()

    def renew(self) -> None:
        self.y = torch.full((self.rows, self.columns), torch.nan, device=GPU)
        self.residual = self.source.clone()
        self.squares_out = torch.full((self.rows, self.tiles), torch.nan, device=GPU)

    def outcome(self) -> list[Tensor]:
        torch.cuda.synchronize()
        made = [self.y, self.residual, self.squares_out] if self.add else [self.y]
        assert not any(t.isnan().any() for t in made), "not all was written"
        return made

    def _common(self) -> dict[str, Any]:
        return {
            "N": self.columns, "K": self.depth, "EPILOGUE": {"store": STORE, "add": ADD, "gated": GATED}[self.kind],
            "TILES": self.tiles, "LEVELS": (self.tiles - 1).bit_length(), "SPLIT": self.split,
        }  # fmt: skip

    def narrow(self, tile: int, kernel: Any = linear_kernel, rows: int | None = None) -> Any:
        cut = tiling(self.columns, self.depth, tile, gated=self.gated, split=self.split)
        rows = self.rows if rows is None else rows
        return kernel[(-(-rows // cut.rows), -(-self.columns // cut.block_n), cut.split)](
            self.x, self.w, None, None, None if self.add else self.squares, self.y, self.residual if self.add else None,
            self.gain if self.add else None, self.squares_out if self.add else None, self.partial, self.counter,
            rows, 1e-5, **self._common(), GELU=False, M=cut.rows, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k,
            PREFETCH=2, DEPENDENT=False, num_stages=cut.stages, **({} if kernel is before.linear_kernel else UNFUSED),
        )  # fmt: skip

    def wide(self, m: int, n: int, k: int, paired: bool, warps: int, stages: int, tma: bool, group: int = 8) -> Any:
        grid = (-(-self.rows // m) * -(-self.columns // n),)
        k = math.gcd(k, self.depth // self.split)
        options = {**self._common(), "M": m, "BLOCK_N": n, "BLOCK_K": k, "PAIRED": paired, "GROUP": group,
                   "num_warps": warps, "num_stages": stages, **UNFUSED}  # fmt: skip
        ends = (
            None if self.add else self.squares, self.y, self.residual if self.add else None, self.gain if self.add else None,
            self.squares_out if self.add else None, self.rows, 1e-5,
        )  # fmt: skip
        if tma:
            x, w = TensorDescriptor.from_tensor(self.x, [m, k]), TensorDescriptor.from_tensor(self.w, [n, k])
            return wide_tma_kernel[grid](x, w, *ends, **options)
        return wide_kernel[grid](self.x, self.w, None, *ends, **options, GELU=False, DEPENDENT=False)


Config = tuple[int, int, int, bool, int, int, bool, int]


def configs(product: Product, few: bool) -> list[Config]:
    """(rows, columns, depth, paired, warps, stages, copy engine, group) of tiles."""
    found: list[Config] = []
    for tma in (False, True):
        if product.gated:
            found += [(128, 128, 64, False, 8, 3, tma, 8), (128, 128, 64, False, 8, 4, tma, 8), (128, 64, 64, False, 4, 3, tma, 8)]
            if not few:
                found += [(256, 64, 64, False, 8, 4, tma, 8), (64, 128, 64, False, 4, 3, tma, 8)]
                found += [(128, 128, 64, False, 8, 4, tma, 4), (128, 128, 64, False, 8, 4, tma, 16)]
        elif product.split == 2:
            found += [(128, 128, 64, True, 8, 3, tma, 8), (128, 128, 64, False, 8, 4, tma, 8), (128, 64, 64, True, 4, 2, tma, 8)]
            if not few:
                found += [(128, 128, 32, True, 8, 5, tma, 8), (64, 128, 64, True, 4, 2, tma, 8), (128, 128, 128, False, 8, 3, tma, 8)]
                found += [(128, 128, 64, True, 8, 3, tma, 4), (128, 128, 64, True, 8, 3, tma, 16)]
        else:
            found += [(128, 128, 64, False, 8, 4, tma, 8), (128, 64, 64, False, 4, 3, tma, 8), (64, 64, 64, False, 4, 4, tma, 8)]
    return found


def linear(shape: str, rows: int, *, few: bool = False, timed: bool = True) -> None:
    for kind, columns, depth in SHAPES[shape]:
        product = Product(kind, columns, depth, rows)
        what = {"section": "linear", "shape": shape, "kind": kind, "columns": columns, "depth": depth, "rows": rows}
        tried = configs(product, few)
        with ThreadPoolExecutor(16) as pool:  # compile side by side
            list(pool.map(lambda c: _quietly(lambda: product.wide(*c)), tried))
        torch.cuda.synchronize()
        product.renew()
        product.narrow(16)
        expected = product.outcome()
        for tile in (32, 64):
            product.renew()
            product.narrow(tile)
            say(**what, tile=f"narrow {tile}", bits=same(product.outcome(), expected))
        work = 2 * rows * product.w.numel()
        if timed:
            ms = do_bench_cudagraph(lambda: torch.mm(product.x, product.w.T), rep=8)
            say(**what, tile="cublas", tflops=round(work / ms / 1e9))
        for config in tried:
            m, n, k, paired, warps, stages, tma, group = config

            def run(config: Config = config, product: Product = product, expected: list[Tensor] = expected, work: int = work) -> dict[str, object]:  # fmt: skip
                product.renew()
                compiled = product.wide(*config)
                found: dict[str, object] = {"bits": same(product.outcome(), expected), "regs": compiled.n_regs, "spills": compiled.n_spills}  # fmt: skip
                if timed:
                    ms = do_bench_cudagraph(lambda: product.wide(*config), rep=8)
                    found |= {"tflops": round(work / ms / 1e9)}
                return found

            name = f"{m}x{n}x{k}{' paired' if paired else ''} w{warps} s{stages}{' tma' if tma else ''} g{group}"
            attempt({**what, "tile": name}, run)


def _quietly(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:  # told when it is tried again
        pass


# attention ---------------------------------------------------------------------------------------------------------


class Attending:
    """A piece of one sequence over its cache: `count` rows from position `begin` on."""

    def __init__(self, shape: str, begin: int, count: int, window: int = 0) -> None:
        self.heads, self.kv_heads, self.dim = HEADS[shape]
        self.begin, self.count, self.window = begin, count, window
        self.capacity = begin + count + 70
        self.qkv = random(count, (self.heads + 2 * self.kv_heads) * self.dim)
        self.keys, self.values = (random(2, self.kv_heads, self.capacity, self.dim) for _ in range(2))
        self.positions = torch.arange(begin, begin + count, dtype=torch.int32, device=GPU)
        self.bases = self.positions + 1
        self.slots = torch.ones(count, dtype=torch.int32, device=GPU)
        self.paths = torch.zeros(count, 64, dtype=torch.int32, device=GPU)
        self.blocks = -(-self.capacity // BLOCK)
        self.cells = min(count, 256) * self.kv_heads * self.blocks * TILE
        self.partial = torch.zeros(self.cells * self.dim, device=GPU)
        self.stats = torch.zeros(self.cells * 2, device=GPU)
        self.counter = torch.zeros(count * self.kv_heads, dtype=torch.int32, device=GPU)
        self.scale = self.dim**-0.5
        self.renew()
        self.flops = 4 * self.heads * self.dim * sum(p + 1 for p in range(begin, begin + count))

    def renew(self) -> None:
        self.out = torch.full((self.count, self.heads * self.dim), torch.nan, dtype=DTYPE, device=GPU)

    def narrow(self, together: bool, *, old: bool = False, most: int | None = None) -> Any:
        group = TILE // (1 << (self.heads // self.kv_heads - 1).bit_length()) if together else 1
        kernel, scale = (before.attend_kernel, self.scale) if old else (attend_kernel, self.scale * LOG2E)
        for start in range(0, most or self.count, 256):
            some = slice(start, min(most or self.count, start + 256))
            count = some.stop - start
            groups = -(-count // group)
            spread = min(self.blocks, max(4, 1024 // (groups * self.kv_heads * group)))
            made = kernel[(groups, self.kv_heads, spread * group)](
                self.qkv[some], self.keys, self.values, self.out[some], self.slots[some], self.positions[some],
                self.bases[some], self.paths[some], self.partial, self.stats, self.counter, count, self.capacity,
                self.blocks, self.window, scale, HEADS=self.heads, KV_HEADS=self.kv_heads, DIM=self.dim, PATH=64,
                TOGETHER=group, TILE=TILE, BLOCK=BLOCK, DEPENDENT=False, **({} if old else UNFUSED),
            )  # fmt: skip
        return made

    def wide(self, m: int, warps: int, stages: int) -> Any:
        tiles = torch.tensor(
            [[s, min(m, self.count - s)] for s in range(0, self.count, m)], dtype=torch.int32, device=GPU
        )
        self.tiles = tiles
        return self.launch(m, warps, stages)

    def launch(self, m: int, warps: int, stages: int) -> Any:
        return prompt_kernel[(self.heads, len(self.tiles))](
            self.qkv, self.keys, self.values, self.out, self.slots, self.positions, self.tiles, self.capacity,
            self.window, self.scale * LOG2E, HEADS=self.heads, KV_HEADS=self.kv_heads, DIM=self.dim, M=m, BLOCK=BLOCK,
            DEPENDENT=False, num_warps=warps, num_stages=stages, **UNFUSED,
        )  # fmt: skip

    def outcome(self) -> list[Tensor]:
        torch.cuda.synchronize()
        assert not self.out.isnan().any(), "not all was written"
        return [self.out.view(torch.int16).clone()]


TILES = ((128, 8, 1), (128, 8, 2), (128, 8, 3), (64, 4, 1), (64, 4, 2), (64, 4, 3))


def attention() -> None:
    for shape in HEADS:
        warm = Attending(shape, 0, 256)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda c, warm=warm: _quietly(lambda: warm.wide(*c)), TILES))
        for begin, count, window in (
            (0, 300, 0),
            (1000, 333, 0),
            (5, 1, 0),
            (128, 128, 0),
            (900, 300, 200),
            (2000, 64, 1024),
        ):
            case = Attending(shape, begin, count, window)
            what = {"section": "attention", "shape": shape, "begin": begin, "rows": count, "window": window}
            case.narrow(False)
            expected = case.outcome()
            near = _reference(case)
            say(**what, tile="narrow alone", close=float((case.out.float() - near).abs().max()))
            case.renew()
            case.narrow(True)
            say(**what, tile="narrow together", bits=same(case.outcome(), expected))
            for config in TILES:

                def run(config: tuple[int, int, int] = config, case: Attending = case, expected: list[Tensor] = expected) -> dict[str, object]:  # fmt: skip
                    case.renew()
                    case.wide(*config)
                    return {"bits": same(case.outcome(), expected)}

                attempt({**what, "tile": "m%d w%d s%d" % config}, run)
    for shape, context in (("8b", 2048), ("8b", 8192), ("8b", 32_000), ("135m", 2048), ("135m", 8192)):
        case = Attending(shape, context - 2048, 2048)
        for config in TILES:

            def timed(config: tuple[int, int, int] = config, case: Attending = case) -> dict[str, object]:
                made = case.wide(*config)
                ms = do_bench_cudagraph(lambda: case.launch(*config), rep=8)
                return {
                    "ms": round(ms, 3),
                    "tflops": round(case.flops / ms / 1e9),
                    "regs": made.n_regs,
                    "spills": made.n_spills,
                }

            attempt({"section": "attention time", "shape": shape, "context": context, "rows": 2048,
                     "tile": "m%d w%d s%d" % config}, timed)  # fmt: skip
        q = random(1, case.heads, 2048, case.dim)
        k, v = (t[:1, :, :context].contiguous() for t in (case.keys, case.values))
        if context == 2048:
            ms = do_bench(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                          warmup=10, rep=40, return_mode="median")  # fmt: skip
            say(
                section="attention time",
                shape=shape,
                context=context,
                tile="torch sdpa",
                tflops=round(case.flops / ms / 1e9),
            )


def _reference(case: Attending) -> Tensor:
    each = case.heads // case.kv_heads
    q = case.qkv.view(case.count, -1, case.dim)[:, : case.heads].double().transpose(0, 1)
    end = case.begin + case.count
    k, v = (t[1, :, :end].double().repeat_interleave(each, 0) for t in (case.keys, case.values))
    p = torch.arange(end, device=GPU)
    mine = case.positions.long()[:, None]
    seen = (p[None] <= mine) & ((p[None] > mine - case.window) if case.window else True)
    score = (q @ k.transpose(1, 2) * case.scale).masked_fill(~seen, -torch.inf)
    return (score.softmax(-1) @ v).transpose(0, 1).reshape(case.count, -1).float()


# few rows: what the fixed orders cost ------------------------------------------------------------------------------


def narrow() -> None:
    products = [(shape, Product(*one, 64)) for shape in SHAPES for one in SHAPES[shape]]
    jobs = [(s, p, rows) for s, p in products for rows in ((1, 16, 64) if s == "8b" else (1,))]
    with ThreadPoolExecutor(16) as pool:
        both = [(p, rows, k) for _, p, rows in jobs for k in (before.linear_kernel, linear_kernel)]
        list(pool.map(lambda j: _quietly(lambda: j[0].narrow(j[1], j[2], j[1])), both))
    torch.cuda.synchronize()
    for shape, p, rows in jobs:
        times = {}
        for name, kernel in (("old", before.linear_kernel), ("new", linear_kernel), ("old again", before.linear_kernel)):
            ms = do_bench(lambda: p.narrow(rows, kernel, rows), warmup=5, rep=25, return_mode="median")
            times[name] = round(ms * 1000, 1)
        say(section="narrow", shape=shape, kind=p.kind, columns=p.columns, depth=p.depth, rows=rows, us=times)
    for shape in HEADS:
        for context in (300, 2048, 8192, 32_000):
            for rows, together in ((1, False), (5, True), (16, True)):
                case = Attending(shape, context - rows, rows)
                times, regs = {}, {}
                for name, old in (("old", True), ("new", False), ("old again", True)):
                    regs[name] = case.narrow(together, old=old).n_regs
                    ms = do_bench_cudagraph(lambda: case.narrow(together, old=old), rep=5)
                    times[name] = round(ms * 1000, 1)
                say(section="narrow attention", shape=shape, context=context, rows=rows, us=times, regs=regs["new"], regs_old=regs["old"])


SECTIONS: dict[str, Callable[[], None]] = {
    "dots": dots,
    "linear-8b": lambda: linear("8b", 2048),
    "linear-8b-512": lambda: linear("8b", 512, few=True),
    "linear-135m": lambda: linear("135m", 2048, few=True),
    "attention": attention,
    "narrow": narrow,
}


def main() -> None:
    if sys.argv[1:2] == ["--only"]:
        torch.manual_seed(0)
        SECTIONS[sys.argv[2]]()
        return
    kept = open(sys.argv[sys.argv.index("--out") + 1], "w") if "--out" in sys.argv else None
    for name in [a for a in sys.argv[1:] if a in SECTIONS] or SECTIONS:
        began = perf_counter()
        with subprocess.Popen([sys.executable, "-u", __file__, "--only", name], stdout=subprocess.PIPE, text=True) as process:
            clock = threading.Timer(100, process.kill)
            clock.start()
            equal, groups = 0, {}
            for line in process.stdout:
                if kept:
                    kept.write(line)
                    kept.flush()
                if not line.startswith("{"):
                    print(line, end="", flush=True)
                    continue
                found = json.loads(line)
                value = found.get("tflops", found.get("us"))
                if found.get("bits") is True:
                    equal += 1
                elif "bits" in found or "error" in found:
                    print(line, end="", flush=True)
                if value is not None:
                    group = " ".join(str(found[key]) for key in ("section", "shape", "kind", "columns", "depth", "context", "rows") if key in found)
                    told = "/".join(map(str, value.values())) if isinstance(value, dict) else value
                    groups.setdefault(group, []).append(f"{found.get('tile', '')}:{told}")
            for group, told in groups.items():
                print(group, "|", " | ".join(told), flush=True)
            status = process.wait()
            clock.cancel()
        print(f"== {name}: status {status}, {equal} equal, {perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
