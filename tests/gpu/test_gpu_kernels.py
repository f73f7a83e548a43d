"""Every GPU kernel against PyTorch: by Triton's interpreter where there is no GPU, in fp16, which it can multiply."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

pytest.importorskip("triton")

from outrider.models.cuda.chooser import Chooser, Noise
from outrider.models.cuda.device import GPU
from outrider.models.cuda.graphs import Graphs
from outrider.models.cuda.kernels.attention import BLOCK, TILE, attend_kernel
from outrider.models.cuda.kernels.fold import UNFUSED
from outrider.models.cuda.kernels.linear import ADD, GATED, STORE, linear_kernel
from outrider.models.cuda.tiling import depth_split, tiling
from outrider.sampling.draw import perturb
from outrider.sampling.noise import Key, words
from outrider.sampling.params import SamplingParams
from outrider.sampling.warp import truncate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
CLOSE: dict[str, Any] = {"atol": 3e-2, "rtol": 2e-2} if DEVICE.type == "cuda" else {"atol": 4e-3, "rtol": 4e-3}


def random(*shape: int, dtype: torch.dtype = DTYPE, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


@pytest.mark.parametrize("rows", [1, 5, 18, 40])
@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("epilogue", ["store", "add", "gated-silu", "gated-gelu"])
def test_linear(rows: int, split: int, epilogue: str) -> None:
    """Norm folded in, bias, residual, gate; columns that do not fill the last tile; counters left at zero."""
    columns, depth, eps = 96, 128, 1e-5
    gated = epilogue.startswith("gated")
    if gated and split > 1:
        pytest.skip("gated products are not split")
    source = random(rows, depth, dtype=torch.float32)
    x = source.to(DTYPE)
    w = random(2 * columns if gated else columns, depth, seed=1) / 8
    bias = random(w.shape[0], dtype=torch.float32, seed=2)
    residual, gain = random(rows, columns, seed=3), random(columns, dtype=torch.float32, seed=4)
    squares = torch.stack([source[:, :50].square().sum(1), source[:, 50:].square().sum(1)], dim=1).contiguous()
    y = torch.full((rows, columns), torch.nan, dtype=DTYPE, device=DEVICE)
    squares_out = torch.zeros(rows, 2, device=DEVICE)
    counter = torch.zeros(8, dtype=torch.int32, device=DEVICE)
    before = residual.clone()
    m = 16 if rows <= 16 else 32
    row_tiles = -(-rows // m)
    linear_kernel[(row_tiles, 2, split)](
        x, w, None, bias, None, squares, y, residual, gain, squares_out,
        torch.zeros(row_tiles * 2 * split * 64 * m, device=DEVICE), counter, rows, eps,
        N=columns, K=depth, EPILOGUE={"store": STORE, "add": ADD}.get(epilogue, GATED), GELU=epilogue == "gated-gelu",
        TILES=2, LEVELS=1, M=m, BLOCK_N=64, BLOCK_K=32, SPLIT=split, PREFETCH=0, DEPENDENT=False,
    )  # fmt: skip
    scale = torch.rsqrt(source.square().mean(1, keepdim=True) + eps)
    product = x.float() @ w.float().T * scale + bias
    if gated:
        act = silu if epilogue == "gated-silu" else lambda z: gelu(z, approximate="tanh")
        torch.testing.assert_close(y.float(), act(product[:, :columns]) * product[:, columns:], **CLOSE)
    elif epilogue == "add":
        total = before.float() + product
        torch.testing.assert_close(residual.float(), total, **CLOSE)
        torch.testing.assert_close(y.float(), total * gain, **CLOSE)
        torch.testing.assert_close(squares_out.sum(1), total.square().sum(1), atol=0.5, rtol=2e-2)
    else:
        torch.testing.assert_close(y.float(), product, **CLOSE)
    assert not counter.any()


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize("together", [1, 4])
def test_attention(window: int, together: int) -> None:
    """Rows of two slots: one at the very start, others deep in the cache with scattered ancestors; with scratch for
    all, for some of the groups, and for none. The blocks of a slot lie anywhere."""
    heads, kv_heads, dim, capacity = 6, 2, 32, 512
    rows = [  # slot, position, base, path
        (0, 0, 1, []),
        (1, 300, 299, [310, 305]),
        (1, 301, 299, [310, 306, 390]),
        (1, 299, 299, [311]),
        (1, 301, 302, []),
    ]
    qkv = random(len(rows), (heads + 2 * kv_heads) * dim)
    blocks, groups = capacity // BLOCK, -(-len(rows) // together)
    keys, values = (random(2 * blocks, kv_heads, BLOCK, dim, seed=seed) for seed in (1, 2))
    table = torch.tensor([[5, 1, 7, 2], [4, 6, 3, 0]], dtype=torch.int32, device=DEVICE)

    def column(i: int) -> Tensor:
        return torch.tensor([row[i] for row in rows], dtype=torch.int32, device=DEVICE)

    paths = torch.zeros(len(rows), 64, dtype=torch.int32, device=DEVICE)
    for r, (*_, path) in enumerate(rows):
        paths[r, : len(path)] = torch.tensor(path, dtype=torch.int32)
    cells = groups * kv_heads * blocks * TILE
    counter = torch.zeros(groups * kv_heads, dtype=torch.int32, device=DEVICE)

    def attended(spread: int, known: int = groups * blocks) -> torch.Tensor:
        """With so many programs to share out a row's blocks, and so many cells of scratch."""
        out = torch.full((len(rows), heads * dim), torch.nan, dtype=torch.float32, device=DEVICE)  # every bit shows
        attend_kernel[(groups, kv_heads, spread * together)](
            qkv, keys, values, out, table, column(0), column(1), column(2), paths,
            torch.arange(groups, dtype=torch.int32, device=DEVICE) * blocks,
            torch.zeros(cells * dim, device=DEVICE), torch.zeros(cells * 2, device=DEVICE), counter,
            len(rows), blocks, known, window, 0.3 / math.log(2), HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PATH=64,
            TOGETHER=together, TILE=TILE, BLOCK=BLOCK, DEPENDENT=False, **UNFUSED,
        )  # fmt: skip
        return out

    out = attended(blocks)
    assert all(torch.equal(attended(spread), out) for spread in (1, 2, 3))
    assert all(torch.equal(attended(2, known), out) for known in (0, blocks, blocks + 1))
    for r, (slot, position, base, path) in enumerate(rows):
        index = [*range(base), *path][: position + 1][-window or None :]
        for head in range(heads):
            q = qkv[r, head * dim : (head + 1) * dim].float()
            at = table[slot, torch.tensor(index) // BLOCK], head // 3, torch.tensor(index) % BLOCK
            k, v = (cache[at].float() for cache in (keys, values))
            expected = torch.softmax(k @ q * 0.3, 0) @ v
            torch.testing.assert_close(out[r, head * dim : (head + 1) * dim].float(), expected, **CLOSE)
    assert not counter.any()


def numbers(
    temperatures: Sequence[float],
    top_p: Sequence[float] = (),
    min_p: Sequence[float] = (),
    top_k: Sequence[int] = (),
) -> Tensor:
    """As the kernels read them: temperature, top_p, log(min_p), top_k."""
    rows = len(temperatures)
    least = [math.log(p) if p else -math.inf for p in min_p or [0.0] * rows]
    columns = [list(temperatures), list(top_p) or [1.0] * rows, least, list(top_k) or [0] * rows]
    return torch.tensor(columns, dtype=torch.float64, device=DEVICE).T.contiguous()


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 6.0])
def test_truncated_choices_are_the_reference_s(sharpness: float) -> None:
    """Top-k, top-p and min-p of all sizes, ties at their edge, greedy and untruncated rows between."""
    vocab, rows = 1300, 48
    logits = random(rows, vocab + 60, dtype=torch.float32, seed=4) * sharpness
    logits[:, vocab:] = 1e4
    logits[::5, :900] = logits[::5, :900].round()
    temperatures = [(1.0, 0.7, 0.0, 2.5)[r % 4] for r in range(rows)]
    top_p = [(0.9, 0.5, 1.0, 0.999999, 1e-9, 0.05)[r % 6] for r in range(rows)]
    min_p = [(0.0, 0.0, 0.2, 1.0, 1e-3)[r % 5] for r in range(rows)]
    top_k = [(0, 0, 1, 5, 60, 1000, 1299)[r % 7] for r in range(rows)]
    keys = [Key(11, 0, position) for position in range(rows)]
    chosen = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    noise = Noise(words(keys).to(DEVICE), numbers(temperatures, top_p, min_p, top_k))
    Chooser(rows, vocab, DEVICE).choose(logits, rows, noise, chosen)
    expected, untruncated = [], 0
    for r, row in enumerate(logits[:, :vocab].double().cpu()):
        scores = row[None].clone()
        if temperatures[r]:
            asked = SamplingParams(temperature=temperatures[r], top_k=top_k[r], top_p=top_p[r], min_p=min_p[r])
            whole = perturb(((row - row.max()) / temperatures[r])[None], [keys[r]])
            scores = perturb(truncate(scores, asked.resolve({}, [], vocab)), [keys[r]])
            untruncated += int(whole.argmax() == scores.argmax())
        expected.append(int((scores[0] == scores.max()).nonzero()[0]))
    assert chosen.tolist() == expected
    assert untruncated < rows * 3 / 4, "no test"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_scores_that_are_no_numbers_are_told(temperature: float) -> None:
    logits = random(3, 1100, dtype=torch.float32)
    logits[1, 1050] = torch.nan
    chosen = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    keys = [Key(1, 0, position) for position in range(3)]
    chooser = Chooser(3, 1100, DEVICE)
    for noise in (Noise(words(keys).to(DEVICE), numbers([temperature] * 3, [0.9] * 3)), None):
        chooser.choose(logits, 3, noise, chosen)
        assert chosen[1] == -1
        assert min(chosen.tolist()[::2]) >= 0


def test_choices_are_the_reference_s() -> None:
    """Greedy and sampled rows together, ties, impossible tokens, and columns beyond the vocabulary."""
    vocab, temperatures = 2500, [0.0, 1.0, 0.7, 0.0, 3.0, 1e-3]
    logits = random(len(temperatures), vocab + 60, dtype=torch.float32) * 4
    logits[:, vocab:] = 1e4
    logits[3, [7, 1900, 2100]] = 50.0
    logits[4, ::3] = -torch.inf
    keys = [Key(2**63 + 5, 1, position) for position in range(len(temperatures))]
    noise = Noise(words(keys).to(DEVICE), numbers(temperatures))
    chosen = torch.zeros(len(temperatures), 3, dtype=torch.int32, device=DEVICE)
    chooser = Chooser(8, vocab, DEVICE)
    chooser.choose(logits, len(temperatures), noise, chosen[:, 1])
    expected = []
    for row, key, temperature in zip(logits[:, :vocab].double(), keys, temperatures, strict=True):
        if temperature:
            row = perturb(((row - row.max()) / temperature)[None], [key])[0]
        expected.append(int((row == row.max()).nonzero()[0]))
    assert chosen[:, 1].tolist() == expected
    assert not chosen[:, [0, 2]].any()
    chooser.choose(logits, len(temperatures), None, chosen[:, 0])
    assert chosen[:, 0].tolist() == logits[:, :vocab].argmax(1).tolist()


def test_choices_over_a_reduced_vocabulary_use_the_noise_of_the_whole() -> None:
    """Columns stand for other tokens: the noise is theirs, and so is what is chosen."""
    ids = torch.arange(1500) * 7 + 3
    logits = random(4, 1510, dtype=torch.float32, seed=6) * 2
    keys = [Key(9, 0, position) for position in range(4)]
    temperatures = torch.tensor([0.0, 1.0, 0.5, 2.0], dtype=torch.float64, device=DEVICE)
    chosen = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    chooser = Chooser(4, 1500, DEVICE, ids)
    chooser.choose(logits, 4, Noise(words(keys).to(DEVICE), numbers(temperatures.tolist())), chosen)
    wide = torch.full((4, 11_000), -torch.inf, dtype=torch.float64, device=DEVICE)
    wide[:, ids.to(DEVICE)] = logits[:, :1500].double()
    scores = torch.cat([wide[:1], perturb(wide[1:] / temperatures[1:, None], keys[1:])])
    assert chosen.tolist() == scores.argmax(1).tolist()
    assert chosen.tolist()[1:] != ids[logits[1:, :1500].argmax(1).cpu()].tolist()
    chooser.choose(logits, 4, None, chosen)
    assert chosen.tolist() == ids[logits[:, :1500].argmax(1).cpu()].tolist()


def test_what_nobody_prepared_is_counted() -> None:
    graphs, ran = Graphs(DEVICE), []
    launches = [(("a",), lambda: ran.append("a")), (("b",), lambda: ran.append("b"))]
    for recording in graphs.recordings(launches[:1]):
        recording.record()
    assert not list(graphs.recordings(launches[:1])), "it is recorded"
    graphs.run(*launches[0])
    assert graphs.late == 0
    for _ in range(2):
        graphs.run(*launches[1])
    assert graphs.late == 1
    assert "a" in ran
    assert "b" in ran


CARDS = {
    "RTX 3060": GPU(101_376, 28, (8, 6)),
    "RTX 4090": GPU(101_376, 128, (8, 9)),
    "A100": GPU(166_912, 108, (8, 0)),
    "H200": GPU(232_448, 132, (9, 0)),
    "RTX 5090": GPU(101_376, 170, (12, 0)),
}
MATRICES = [(6144, 4096), (4096, 14336), (128_256, 4096), (960, 576), (576, 1536), (64, 96)]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("columns", "depth"), MATRICES)
def test_tilings_cover_the_matrix_fit_the_card_and_split_it_alike_everywhere(
    columns: int, depth: int, card: str
) -> None:
    for gated, size in itertools.product((False, True), (1, 2) if depth % 64 == 0 else (2,)):
        split = 1 if gated else depth_split(columns, depth, size)
        for rows in (1, 16, 17, 64, 512):
            cut = tiling(columns, depth, rows, CARDS[card], gated=gated, split=split, size=size)
            assert cut.split == split
            assert depth % (split * cut.block_k) == 0
            assert cut.block_k >= 16
            assert cut.stages >= 3
            assert cut.shared(size, gated) <= CARDS[card].shared
