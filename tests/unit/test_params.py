"""Sampling parameters: what is refused and how that is said, and where defaults come from."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy
import pytest

from outrider.core.request import ResolvedParams
from outrider.errors import InvalidRequest
from outrider.sampling.params import SamplingParams


def resolve(generation_config: dict[str, Any] | None = None, **options: Any) -> ResolvedParams:
    return SamplingParams(**options).resolve(generation_config or {}, [2, 5], 100)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_tokens", [0, -1, 1.5, True, "8"]),
        ("temperature", [-0.1, math.nan, math.inf, True, "hot", 10**400, -(10**5000)]),
        ("top_k", [-2, 1.5, True, "5", -(10**5000)]),
        ("top_p", [0, 0.0, -0.1, 1.1, math.nan, True, "0.9"]),
        ("min_p", [-0.1, 1.1, math.nan, False]),
        ("repetition_penalty", [0, -1, math.nan, math.inf, True, 1e-307, 0.009, 101, 1e307, 10**5000]),
        ("frequency_penalty", [-2.1, 2.1, math.nan, None, True, 1e308]),
        ("presence_penalty", [-2.1, 2.1, math.nan, None, True, -1e308]),
        (
            "logit_bias",
            [
                *({1: 101}, {1: -101}, {1: math.nan}, {-1: 0}, {"1": 0}, {True: 0}, {1: None}, [1], None),
                *({1: math.inf}, {1: -math.inf}, {1: 1e308}, {1: 10**5000}, {10**5000: "x"}),
            ],
        ),
        ("seed", [1.0, True, "7", 10**5000, -(10**5000), 2**128]),
        ("stop", ["", ["a", ""], [1], 5, None]),
        ("stop_token_ids", [[-1], [1.0], [True], "12", {1: 2}, 5, None]),
        ("ignore_eos", [1, None, "yes"]),
        ("min_tokens", [-1, 1.5, True, None]),
        ("logprobs", [-1, 21, 1.5, True]),
        ("processed_logprobs", [1, None]),
        ("verify", ["exact", "", None, 1, numpy.array(["coupled", "coupled"])]),
    ],
)
def test_refused_with_the_name_of_the_parameter(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest, match=name) as refused:
            SamplingParams(**{name: value})
        assert len(str(refused.value)) < 250


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(InvalidRequest, match=r"min_tokens \(9\) must not exceed max_tokens \(8\)"):
        SamplingParams(max_tokens=8, min_tokens=9)


def test_numbers_of_thousands_of_digits_are_named_without_writing_them_out() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        SamplingParams(min_tokens=10**5000)
    with pytest.raises(InvalidRequest, match="stop_token_ids names token"):
        resolve(stop_token_ids=[10**5000])


def test_a_top_k_of_the_whole_vocabulary_is_none() -> None:
    assert resolve(temperature=1, top_k=99).top_k == 99
    for top_k in (100, 2**31, 2**32 + 3, 10**400, 10**5000):
        assert resolve(temperature=1, top_k=top_k).top_k == 0


def test_limits_are_allowed() -> None:
    SamplingParams(
        repetition_penalty=0.01,
        max_tokens=None,
        temperature=0,
        top_k=-1,
        top_p=1,
        min_p=1,
        frequency_penalty=-2,
        presence_penalty=2,
        logit_bias={0: -100, 99: 100},
        seed=-(10**30),
        logprobs=20,
    )


def test_without_a_generation_config_the_model_is_greedy() -> None:
    params = resolve()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 0, 1.0, 0.0)
    assert (params.repetition_penalty, params.max_tokens, params.verify) == (1.0, 128, "coupled")


def test_the_model_decides_what_the_user_leaves_open() -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}
    params = resolve(config, top_k=5)
    assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (0.6, 5, 0.95, 1.1)
    assert resolve(config, temperature=0).temperature == 0


def test_sampling_without_a_temperature_means_1() -> None:
    assert resolve({"do_sample": True}).temperature == 1.0
    assert resolve({"do_sample": True, "temperature": None}).temperature == 1.0
    assert resolve({"do_sample": False, "temperature": 0.6}).temperature == 0.0


def test_a_bad_generation_config_is_named() -> None:
    with pytest.raises(InvalidRequest, match="top_p of the model's generation_config"):
        resolve({"top_p": 0})


def test_stop_tokens() -> None:
    assert resolve(stop_token_ids=[7]).stop_token_ids == {2, 5, 7}
    assert resolve(stop_token_ids=[7], ignore_eos=True).stop_token_ids == {7}
    assert SamplingParams().resolve({}, [2, 100], 100).stop_token_ids == {2}  # 100 can never be generated


def test_token_ids_outside_the_vocabulary() -> None:
    with pytest.raises(InvalidRequest, match=r"logit_bias names token 100, .* 0 to 99"):
        resolve(logit_bias={100: 1})
    with pytest.raises(InvalidRequest, match=r"stop_token_ids names token 1000, .* 0 to 99"):
        resolve(stop_token_ids=[1000])


def test_min_tokens_needs_a_token_that_does_not_stop() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        SamplingParams(min_tokens=1, stop_token_ids=[0, 1]).resolve({}, [2], 3)


def test_stop_strings_are_a_tuple() -> None:
    assert resolve(stop="END").stop == ("END",)
    assert resolve(stop=["a", "b"]).stop == ("a", "b")


def test_a_missing_seed_is_drawn() -> None:
    drawn = {resolve().seed for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 <= seed < 2**53 for seed in drawn)
    assert resolve(seed=-3).seed == -3


def test_max_tokens_none_is_no_limit() -> None:
    assert resolve(max_tokens=None).max_tokens == sys.maxsize


def test_the_callers_containers_are_copied() -> None:
    bias, stops = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stops)
    bias[3] = 4.0
    stops.append("b")
    assert params.logit_bias == {1: 2.0}
    assert params.stop == ("a",)


def test_params_can_be_hashed_and_compared() -> None:
    assert SamplingParams(logit_bias={1: 1}) == SamplingParams(logit_bias={1: 1})
    assert len({SamplingParams(seed=1), SamplingParams(seed=1), SamplingParams(seed=2)}) == 2
