"""Every sampling parameter that steps on the device know: the tokens of the reference (sampling/), by kernels alone and
through the engine, where nothing may fall back to the host."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import device_requests
from device_requests import device_of, stepped
from tiny_gpu import DEVICE, DRAFT, TARGET, gpu_decoder
from tiny_gpu import VOCAB as TINY

from outrider.control.controller import FixedLength
from outrider.core.drafter import Drafter
from outrider.core.request import TokenLogprob
from outrider.drafters.model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.device_executor import _told, steppable
from outrider.engine.device_lanes import _processing
from outrider.engine.request import Request
from outrider.models.cuda import attending, stepper
from outrider.models.cuda.chooser import Chooser, Noise
from outrider.models.cuda.decoder import CudaDecoder
from outrider.models.cuda.kernels.scores import MARKS, REPORTS
from outrider.models.cuda.lanes import MAX_LENGTH
from outrider.models.cuda.network import HEAD_ROWS
from outrider.models.cuda.reports import Reports
from outrider.models.cuda.said import Said
from outrider.sampling.draw import choices, perturb
from outrider.sampling.noise import Key, words
from outrider.sampling.params import SamplingParams
from outrider.sampling.target import score
from outrider.sampling.warp import process, truncate

CHAIN = 3
DRAWN: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.8, "top_k": 4, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.2},
]
CHANGED: dict[str, list[dict[str, Any]]] = {
    "bias": [{"logit_bias": {3: 2.5, 7: -100.0, 11: 0.1}}, {"logit_bias": dict.fromkeys(range(0, 60, 2), 3.0)}],
    "min_tokens": [{"min_tokens": n, "stop_token_ids": list(range(0, 60, 2))} for n in (7, 6, 3)],
    "penalties": [
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.4},
        {"frequency_penalty": 0.37},
        {"presence_penalty": -1.3},
        {"repetition_penalty": 1.2, "frequency_penalty": -0.21, "presence_penalty": 0.9},
    ],
    "all": [
        {
            "repetition_penalty": 1.3,
            "frequency_penalty": 0.3,
            "logit_bias": {4: 1.5, 5: 4.0},
            "min_tokens": 5,
            "stop_token_ids": [5, 8],
        }
    ],
}


def made(number: int, rng: random.Random, vocab: int, asked: dict[str, Any]) -> Request:
    """Something was generated already, some of it twice; tokens beyond 40 are in no text."""
    prompt = rng.choices(range(40), k=12)
    params = SamplingParams(**asked, seed=rng.randrange(1 << 40), max_tokens=30)
    one = device_requests.made(number, prompt, params, vocab)
    output = [9, *rng.choices(range(40), k=2), 9]
    one.history.append(output)
    one.tokens += output
    return one


@pytest.mark.parametrize("vocab", [90, 1500])
@pytest.mark.parametrize("kind", CHANGED)
def test_processed_choices_are_the_reference_s(kind: str, vocab: int) -> None:
    """Rows along a chain, each of which sees the drafts before it; unprocessed lanes between."""
    rng = random.Random(vocab)
    asked = [drawn | changed for drawn in DRAWN for changed in (*CHANGED[kind], {})]
    requests = [made(i, rng, vocab, each) for i, each in enumerate(asked)]
    count = CHAIN + 1
    rows = len(requests) * count
    drafts = torch.full((len(requests), MAX_LENGTH), -1, dtype=torch.int32)
    for one in requests:
        drafts[one.id, :CHAIN] = torch.tensor([41, 9, 41])
    said = Said(len(requests), vocab, drafts.to(DEVICE))
    noise = Noise.room(rows, DEVICE)
    logits = torch.randn(rows, vocab + 7, generator=torch.Generator().manual_seed(5)) * 2
    logits[:, vocab:] = 1e4
    logits[:, :40] += 5.0  # what is changed is likely
    if kind == "penalties":  # the second where the first was drafted, or only where it was twice
        logits[:, [41, 43]] = torch.tensor([14.0, 13.5])
    logits[3::7, :40] = logits[3::7, :40].round()
    expected, unprocessed = list[int](), list[int]()
    for one in requests:
        p = one.params
        asks = _processing(one)
        if asks is not None:
            said.seat(one.id, asks)
        least = math.log(p.min_p) if p.min_p > 0 else -math.inf
        for i in range(count):
            row = one.id * count + i
            early = one.generated + i < p.min_tokens
            marks = torch.tensor([one.id if asks else -1, i, int(early), 0, 0], dtype=torch.int32)
            said.marks[row] = marks.to(DEVICE)
            key = Key(p.seed, p.choice, i)
            noise.words[row] = words([key])[0].to(DEVICE)
            noise.numbers[row] = torch.tensor([p.temperature, p.top_p, least, p.top_k], dtype=torch.float64)
            path = drafts[one.id, :i].tolist()
            raw = logits[row : row + 1, :vocab]
            for z, found in (
                (process(raw, p, one.history, [path]), expected),
                (raw.double().clone(), unprocessed),
            ):
                if p.temperature:
                    z = perturb(truncate(z, p), [key])
                found.append(int(choices(z)[0]))
    chosen = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    Chooser(rows, vocab, DEVICE).choose(logits.to(DEVICE), rows, noise, chosen, said)
    assert chosen.tolist() == expected
    assert sum(a != b for a, b in zip(expected, unprocessed, strict=True)) > rows // 10, "no test"


def test_greedy_rows_are_processed_without_noise() -> None:
    rng = random.Random(1)
    one = made(0, rng, 90, {"temperature": 0.0, "repetition_penalty": 3.0, "logit_bias": {70: 1.0}})
    asks = _processing(one)
    assert asks is not None
    said = Said(1, 90, torch.zeros(1, MAX_LENGTH, dtype=torch.int32, device=DEVICE))
    said.seat(0, asks)
    logits = torch.randn(1, 90, generator=torch.Generator().manual_seed(2))
    logits[0, 9] = 5.0
    chosen = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    Chooser(1, 90, DEVICE).choose(logits.to(DEVICE), 1, None, chosen, said)
    assert chosen.tolist() == process(logits, one.params, one.history, [[]]).argmax(1).tolist() != [9]


def test_more_than_the_device_has_room_for_is_the_host_s() -> None:
    for asked, fits in (
        ({"logit_bias": dict.fromkeys(range(1023), 1.0)}, True),
        ({"logit_bias": dict.fromkeys(range(1024), 1.0)}, False),
        ({"top_k": 1024, "temperature": 1.0}, True),
        ({"top_k": 1025, "temperature": 1.0}, False),
        ({"logprobs": 20}, True),
        ({"processed_logprobs": True}, True),
        ({"logprobs": 1, "processed_logprobs": True}, False),
        ({"verify": "rejection", "temperature": 0.5, "top_p": 0.5}, True),
        ({"verify": "rejection", "temperature": 0.5, "logprobs": 1, "processed_logprobs": True}, False),
        ({"verify": "rejection", "temperature": 0.0}, True),
    ):
        assert steppable(SamplingParams(**asked).resolve({}, [], 5000)) is fits


@pytest.mark.parametrize("vocab", [5, 90, 2500])
def test_reports_are_the_reference_s(vocab: int) -> None:
    """Any number of alternatives, ties, fewer possible tokens than are asked for; rows between that report nothing."""
    asked = [0, 5, None, 20, 1, 20, 7, None, 20]
    rows = len(asked)
    logits = torch.randn(rows, vocab + 9, generator=torch.Generator().manual_seed(vocab)) * 3
    logits[:, vocab:] = 1e4
    logits[4:6, :vocab] = logits[4:6, :vocab].round()
    logits[6, 1 : vocab - 2] = -math.inf
    logits[8, :vocab] *= 1e4
    chosen = torch.tensor([r % vocab for r in range(rows)], dtype=torch.int32)
    marks = torch.zeros(rows, MARKS.value, dtype=torch.int32)
    marks[:, REPORTS.value] = torch.tensor([0 if n is None else 1 + n for n in asked])
    reports = Reports(rows, vocab, DEVICE)
    reports.fill(logits.to(DEVICE), rows, marks.to(DEVICE), chosen.to(DEVICE))
    for found, n, row, token in zip(
        reports.read(reports.table.cpu()), asked, logits[:, :vocab], chosen.tolist(), strict=True
    ):
        if n is None:
            assert found is None
            continue
        assert found is not None
        check_report(_told(token, found), score(row, token, n))


def check_report(found: TokenLogprob, expected: TokenLogprob) -> None:
    assert found.token_id == expected.token_id
    assert [token for token, _ in found.top] == [token for token, _ in expected.top]
    values = [expected.logprob, *(value for _, value in expected.top)]
    assert [found.logprob, *(value for _, value in found.top)] == pytest.approx(values, rel=1e-14, abs=1e-12)


@pytest.fixture(scope="module")
def target() -> CudaDecoder:
    return gpu_decoder(TARGET, max_batch=4)


@pytest.fixture(scope="module")
def draft() -> CudaDecoder:
    return gpu_decoder(DRAFT, max_batch=4)


MIXED: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_k": 5, "logprobs": 0},
    {"temperature": 0.9, "presence_penalty": 1.5, "frequency_penalty": -0.4, "top_p": 0.8, "logprobs": 3},
    {"temperature": 0.0, "logit_bias": {5: 3.0, 9: -4.0}, "min_tokens": 5, "stop_token_ids": list(range(0, TINY, 2))},
    {"temperature": 0.0, "frequency_penalty": 2.0, "logit_bias": {5: 60.0, 9: 60.0, 20: 60.0, 33: 60.0}},
]
PROMPTS = [[5, 6, 7, 5], [3], [80, 2, 80, 2], [9, 9]]


def run(target: CudaDecoder, drafter: Drafter, controller: FixedLength, *, on_device: bool) -> list[Request]:
    """The last joins late, and the first two are short: the others move into their lanes."""
    engine = stepped(target, drafter, controller, on_device=on_device)
    if on_device:
        patched: Any = device_of(engine)._host
        patched.verify = None  # nothing may fall back to it
    requests = [
        device_requests.made(i, prompt, SamplingParams(**asked, seed=i, max_tokens=3 if i < 2 else 9), TINY)
        for i, (prompt, asked) in enumerate(zip(PROMPTS, MIXED, strict=True))
    ]
    for one in requests[:3]:
        engine.add(one)
    engine.step()
    engine.add(requests[3])
    while not all(one.finish_reason for one in requests):
        engine.step()
    return requests


def test_all_that_is_asked_for_was_prepared() -> None:
    """No manner of choosing is recorded while somebody waits."""
    engine = stepped(gpu_decoder(TARGET, max_batch=2), NoDrafter(), FixedLength(0), on_device=True)
    device = device_of(engine)
    for recording in device.recordings():
        recording.record()
    requests = [
        device_requests.made(i, [5, 6], SamplingParams(**asked, seed=i, max_tokens=2 + 2 * i), TINY)
        for i, asked in enumerate(({"temperature": 0.7}, MIXED[1]))
    ]
    for one in requests:
        engine.add(one)
        engine.step()
    while not all(one.finish_reason for one in requests):
        engine.step()
    assert device.late == 0


def tokens(requests: list[Request]) -> list[list[int]]:
    return [one.tokens[one.prompt_length :] for one in requests]


@pytest.fixture(scope="module")
def plain(target: CudaDecoder) -> list[Request]:
    """What the host decides, one row at a time."""
    return run(target, NoDrafter(), FixedLength(0), on_device=False)


@pytest.mark.parametrize(("length", "at_once"), [(0, HEAD_ROWS), (3, HEAD_ROWS), (3, 3)])
def test_every_parameter_runs_on_the_device(
    target: CudaDecoder,
    draft: CudaDecoder,
    plain: list[Request],
    length: int,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a step has more rows than logits are computed for at once, and enough to be attended to as chains."""
    monkeypatch.setattr(stepper, "HEAD_ROWS", at_once)
    if at_once == 3:
        monkeypatch.setattr(attending, "ENOUGH", 0)
    drafter = ModelDrafter(draft) if length else NoDrafter()
    found = run(target, drafter, FixedLength(length), on_device=True)
    assert tokens(found) == tokens(plain)
    for one, same in zip(found, plain, strict=True):
        assert len(one.logprobs) == (0 if one.params.logprobs is None else one.generated)
        for told, expected in zip(one.logprobs, same.logprobs, strict=True):
            check_report(told, expected)
    if length:
        assert sum(one.accepted for one in found) > 0, "no test"
