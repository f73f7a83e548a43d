"""Loading a model: what is read ahead, rounded without the numbers between, and turned for the kernels."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from tiny_gguf import blocks as encoded
from torch import Tensor

from outrider.errors import ModelError
from outrider.models.checkpoints import ahead, gguf_file
from outrider.models.checkpoints.ahead import read_ahead
from outrider.models.checkpoints.gguf_file import GGUFFile
from outrider.models.head import packed as packed_head
from outrider.models.head.packed import Packed
from outrider.models.memory import Arena
from outrider.models.native.formats import requantise, widened
from outrider.models.native.packing import PAIR, PANEL, PackedMatrix, Packer, interleaved, packed
from outrider.models.native.readers import Readers
from outrider.models.precision import BLOCK, blocks, quantise
from outrider.models.stored import KINDS, Stored
from outrider.models.weights import write

WAIT = 60.0


# -- read ahead


@pytest.mark.parametrize("size", [1, 1 << 22, 1 << 25])
def test_tensors_come_in_their_order_and_no_more_than_may_are_read_ahead(size: int) -> None:
    read, most, wanted = 0, 0, 0

    def tensors() -> Iterator[tuple[str, Tensor]]:
        nonlocal read
        for i in range(30):
            read += 1
            yield str(i), torch.empty(size, device="meta")

    for name, _ in read_ahead(tensors()):
        assert name == str(wanted)
        wanted += 1
        most = max(most, read - wanted)
    assert wanted == 30
    assert most <= max(1, min(8, ahead._NUMBERS // size))


def test_the_next_tensor_is_read_while_one_is_put_in_its_place() -> None:
    second = threading.Event()

    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield "first", torch.zeros(1)
        second.set()
        yield "second", torch.zeros(1)

    for _ in read_ahead(tensors()):
        assert second.wait(WAIT)


def test_what_reading_raises_is_raised_in_its_turn() -> None:
    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield "good", torch.zeros(1)
        yield "good", torch.zeros(1)
        raise ValueError("it ends here")

    found = read_ahead(tensors())
    assert [next(found)[0], next(found)[0]] == ["good", "good"]
    with pytest.raises(ValueError, match="it ends here"):
        next(found)


def test_who_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    found = read_ahead((str(i), torch.zeros(1)) for i in range(1000))
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


# -- int8 from a file's blocks


def width_of(kind: str) -> int:
    return 1280 if kind.endswith("_K") else 352


def raw_rows(kind: str, rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    if kind.startswith("Q"):
        return encoded(kind, rows, width_of(kind), 0.05)
    numbers = torch.randn(rows, width_of(kind), generator=torch.Generator().manual_seed(3))
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    return numbers.to(dtype).view(torch.uint8).numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turned", [False, True])
def test_blocks_are_rounded_to_what_their_numbers_are(kind: str, turned: bool) -> None:
    rows, width = 1100, width_of(kind)
    raw = raw_rows(kind, rows)
    numbers = np.empty(rows * width, np.float32)
    assert widened(raw.reshape(-1), kind, numbers)
    wide = torch.from_numpy(numbers).view(rows, width)
    bytes_ = torch.from_numpy(raw)
    stored = Stored(kind, (rows, width), lambda first, last: bytes_[first:last], lambda: bytes_)
    if turned:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
        stored, wide = stored[order], wide[order].contiguous()
    found, expected = (
        (torch.full((rows, width), 99, dtype=torch.int8), torch.full((rows, blocks(width)), -1.0)) for _ in range(2)
    )
    requantise(stored, *found, BLOCK)
    quantise(wide, *expected)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


# -- panels


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "inputs"), [(1, 1), (16, 64), (33, 100), (70, 577)])
def test_panels_hold_the_rows_word_by_word(dtype: torch.dtype, rows: int, inputs: int) -> None:
    weight = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).mul(50).to(dtype)
    panels = packed(weight, Arena())
    step = 64 if dtype == torch.int8 else 32
    whole = torch.zeros(-(-rows // PAIR) * PAIR, -(-inputs // step) * step, dtype=dtype)
    whole[:rows, :inputs] = weight
    lanes = 4 // dtype.itemsize
    expected = whole.view(-1, PANEL, whole.shape[1] // lanes, lanes).transpose(1, 2)
    assert torch.equal(panels.contiguous().view(dtype).view(expected.shape), expected)


# -- panels straight from a file


def rows_in_file(kind: str, rows: int, width: int) -> Stored:
    if kind in ("F32", "BF16"):
        dtype = {"F32": torch.float32, "BF16": torch.bfloat16}[kind]
        numbers = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))
        raw = numbers.to(dtype).view(torch.uint8)
    else:
        raw = torch.from_numpy(encoded(kind, rows, width, 0.05))
    return Stored(kind, (rows, width), lambda first, last: raw[first:last], lambda: raw)


def both(like: Tensor, stored: dict[int, Stored], halves: int, readers: Readers | None = None) -> list[PackedMatrix]:
    """From the file at once; and written as rows first, which then are packed."""
    scales = torch.empty(len(like), blocks(like.shape[1])) if like.dtype == torch.int8 else None
    found = Packer(readers=readers).read(like, None, scales, stored, halves)
    write(dict(stored), like, scales)
    if halves == 2:
        like, scales = interleaved(like), None if scales is None else interleaved(scales)
    return [found, Packer().matrix(like, None, scales)]


def same(found: PackedMatrix, expected: PackedMatrix) -> bool:
    assert found.data is not None and expected.data is not None  # noqa: PT018
    shapes = [
        (each.columns, each.depth, each.inputs, each.data.shape) for each in (found, expected) if each.data is not None
    ]
    if shapes[0] != shapes[1] or not torch.equal(found.data.view(torch.uint8), expected.data.view(torch.uint8)):
        return False
    if found.scales is None or expected.scales is None:
        return found.scales is expected.scales
    return torch.equal(found.scales, expected.scales)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turned", [False, True])
def test_int8_panels_from_a_file_are_those_of_its_rounded_rows(kind: str, turned: bool) -> None:
    width = width_of(kind)
    raw = torch.from_numpy(raw_rows(kind, 1104))
    whole = Stored(kind, (1104, width), lambda first, last: raw[first:last], lambda: raw)
    stored = {0: whole, 1104: replace(whole, shape=(37, width))}
    if turned:
        stored[0] = whole[torch.randperm(1104, generator=torch.Generator().manual_seed(1))]
    assert same(*both(torch.empty(1141, width, dtype=torch.int8), stored, 1))


@pytest.mark.parametrize("rows", [33, 48, 9000])
def test_gate_and_up_take_turns_panel_by_panel(rows: int) -> None:
    stored = {0: rows_in_file("Q4_1", rows, 64), rows: rows_in_file("Q8_0", rows, 64)}
    assert same(*both(torch.empty(2 * rows, 64, dtype=torch.int8), stored, 2))


@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("BF16", torch.bfloat16)])
@pytest.mark.parametrize("width", [1, 31, 257, 576])
@pytest.mark.parametrize("halves", [1, 2])
def test_numbers_go_to_panels_as_they_are(kind: str, dtype: torch.dtype, width: int, halves: int) -> None:
    stored = {0: rows_in_file(kind, 80, width), 80: rows_in_file(kind, 80, width)}
    assert same(*both(torch.empty(160, width, dtype=dtype), stored, halves))


def test_rows_that_a_file_has_only_in_part_are_written_before_they_are_packed() -> None:
    """The others came as numbers, of a kind that nothing is compiled for."""
    stored, scales = rows_in_file("Q4_1", 32, 64), torch.full((64, 1), 2.0)
    values = torch.full((64, 64), 7, dtype=torch.int8)
    found = Packer().linear(values, None, scales, {32: stored})
    expected, its_scales = torch.full((64, 64), 7, dtype=torch.int8), torch.full((64, 1), 2.0)
    requantise(stored, expected[32:], its_scales[32:], BLOCK)
    assert same(found, Packer().matrix(expected, None, its_scales))


def test_readers_fill_what_one_thread_would() -> None:
    stored = {0: rows_in_file("Q4_1", 10000, 64)}
    with Readers() as readers:
        found, expected = both(torch.empty(10000, 64, dtype=torch.int8), stored, 1, readers)
    assert same(found, expected)


def test_what_readers_meet_is_raised_and_they_leave_no_thread() -> None:
    before = threading.active_count()

    def fail() -> None:
        raise ModelError("the file became shorter")

    with pytest.raises(ModelError, match="became shorter"), Readers() as readers:
        readers.do(fail)
    assert threading.active_count() == before


def test_whoever_ends_by_an_error_waits_only_for_what_has_begun() -> None:
    before, begun, done = threading.active_count(), threading.Event(), 0

    def wait() -> None:
        nonlocal done
        begun.set()
        time.sleep(0.05)
        done += 1

    def interrupted() -> None:
        with Readers() as readers:
            for _ in range(readers._most):
                readers.do(wait)
            assert begun.wait(WAIT)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() == before
    assert 0 < done <= min(8, os.cpu_count() or 1)


# -- a head's codes


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("columns", [8, 13, 96])
def test_codes_are_unpacked_alike_with_and_without_a_compiler(
    bits: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 2**bits, (300, columns), generator=draw)
    scales, spread, centre = (torch.randn(size, generator=draw) for size in (300, columns, columns))
    whole = Packed.of(codes, bits, scales, spread, centre)
    found = whole.weight()
    monkeypatch.setattr(packed_head, "unpacked", lambda *_: False)
    assert torch.equal(found, whole.weight())
    assert torch.equal(found, centre + spread * scales[:, None] * (codes - (2**bits - 1) / 2))


# -- a file's header


def test_sizes_of_blocks_are_those_of_the_package_gguf() -> None:
    for number, (name, count, size) in gguf_file._TYPES.items():
        kind = GGMLQuantizationType(number)
        assert (kind.name, GGML_QUANT_SIZES[kind]) == (name, (count, size))


@pytest.mark.parametrize("piece", [1, 7, 9, 64, 1 << 18])
def test_strings_are_read_in_pieces_of_any_size(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "_PIECE", piece)
    words = ["", "a", "Ġthe", "ü" * 40, "x" * 300, *map(str, range(200))]
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_array("words", words)
    writer.add_uint32("after", 7)
    writer.add_array("numbers", [1, 2, 3])
    writer.add_string("last", "one")
    writer.add_tensor("t", np.ones((2, 4), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    file = GGUFFile.open(tmp_path / "m.gguf")
    assert (file.metadata["words"], file.metadata["numbers"]) == (words, [1, 2, 3])
    without = GGUFFile.open(tmp_path / "m.gguf", vocabulary=False)
    assert without == file.without_vocabulary()
    assert without.metadata["after"] == 7
    assert without.metadata["last"] == "one"
    assert "words" not in without.metadata


def test_lists_within_lists_are_no_header(tmp_path: Path) -> None:
    """Each holds one list more, deeper than anything can be read."""
    key, depth = b"deep", 100_000
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + struct.pack("<I", 9)
    (tmp_path / "deep.gguf").write_bytes(header + struct.pack("<IQ", 9, 1) * depth)
    with pytest.raises(ModelError, match="lists within lists"):
        GGUFFile.open(tmp_path / "deep.gguf")


def test_a_file_that_goes_while_it_is_read_is_named(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", np.ones((2, 4), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    file = GGUFFile.open(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").unlink()
    with pytest.raises(ModelError, match=r"cannot read .*m\.gguf any more"):
        file.read("t", torch.float32)


def test_a_forked_child_rounds_blocks_too() -> None:
    """It has none of its parent's threads."""
    forked = {0: rows_in_file("Q4_1", 5000, 352)}

    def gathered() -> bytes:
        with Readers() as readers:
            data = (
                Packer(readers=readers)
                .read(torch.empty(5000, 352, dtype=torch.int8), None, torch.empty(0), forked)
                .data
            )
        return b"" if data is None else data.numpy().tobytes()

    raw = torch.from_numpy(raw_rows("Q4_1", 1100))
    stored = Stored("Q4_1", (1100, 352), lambda first, last: raw[first:last], lambda: raw)

    def rounded() -> bytes:
        values, scales = torch.empty(1100, 352, dtype=torch.int8), torch.empty(1100, blocks(352))
        requantise(stored, values, scales, BLOCK)
        return values.numpy().tobytes() + scales.numpy().tobytes() + gathered()  # PyTorch would wait for its threads

    expected = rounded()
    if not (child := os.fork()):
        os._exit(rounded() != expected)
    deadline = time.monotonic() + WAIT
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("it waits for threads that it does not have")
        time.sleep(0.01)
    assert ended[1] == 0
