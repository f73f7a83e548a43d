"""What is computed from measurements: known numbers, kept and read again, compared with the noise in mind."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_results import noisy, results, timing

from outrider.bench.bystanders import Bystanders
from outrider.bench.compare import compare
from outrider.bench.page import page
from outrider.bench.results import Measurement, Results, finished
from outrider.bench.statistics import mean_interval, quartiles, ratio_of_rates
from outrider.bench.summary import repeats
from outrider.errors import InvalidRequest


def _two_arms() -> Results:
    """suffix: 4 tokens with the prompt, then 12 in 3 passes and 2 seconds; 5, then 4 in 1 pass and 2 seconds."""
    return results(
        [
            Measurement("plain", "a", "chat", 0, 10, timing([1] * 9, 8.0)),
            Measurement("suffix", "a", "chat", 0, 10, timing([4, 6, 5, 1], 2.0)),
            Measurement("plain", "b", "edit", 0, 30, timing([1] * 9, 4.0)),
            Measurement("suffix", "b", "edit", 0, 30, timing([5, 4], 2.0, ids=[7] * 9)),
        ]
    )


def _arm(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in document["arms"] if entry["arm"] == name)


def test_known_numbers() -> None:
    document = _two_arms().document()
    plain, suffix = _arm(document, "plain"), _arm(document, "suffix")
    assert plain["decode_tokens_per_second"] == pytest.approx(16 / 12)
    assert suffix["decode_tokens_per_second"] == pytest.approx(16 / 4)
    assert suffix["e2e_tokens_per_second"] == pytest.approx(25 / 5)
    assert suffix["prefill_seconds"] == pytest.approx(0.5)
    assert suffix["mean_acceptance_length"] == pytest.approx(16 / 4)
    # Passes after the first brought 6, 5, 1 and 4 tokens: 5, 4, 0 and 3 of them drafted.
    assert suffix["acceptance_per_position"] == pytest.approx([0.75, 0.75, 0.75, 0.5, 0.25])
    assert suffix["speedup"]["total"] == pytest.approx(4 / (16 / 12))
    assert suffix["speedup"]["median"] == pytest.approx((6.0 + 1.0) / 2)
    assert (suffix["identical_to_plain"], suffix["reference"], suffix["answers"]) == (0, "plain", 2)
    assert suffix["categories"]["edit"]["decode_tokens_per_second"] == pytest.approx(2.0)
    assert suffix["categories"]["chat"]["mean_acceptance_length"] == pytest.approx(4.0)
    assert plain["mean_acceptance_length"] == 1.0
    assert plain["acceptance_per_position"] == []
    assert plain["identical_to_plain"] == 2


def test_the_promised_fields() -> None:
    document = json.loads(_two_arms().dumps())
    assert {"arms", "provenance", "settings", "measurements", "complete"} <= set(document)
    promised = {
        *("arm", "decode_tokens_per_second", "e2e_tokens_per_second", "prefill_seconds", "mean_acceptance_length"),
        *("identical_to_plain", "categories"),
    }
    for entry in document["arms"]:
        assert promised <= set(entry)
        for figures in entry["categories"].values():
            assert promised - {"arm", "categories"} <= set(figures)


def test_sampled_peers_are_not_asked_for_the_same_tokens() -> None:
    made = results(
        [Measurement(arm, "a", "c", 0, 9, timing([1] * 9, 1.0)) for arm in ("plain", "suffix", "transformers")], 0.7
    )
    document = made.document()
    assert _arm(document, "suffix")["identical_to_plain"] == 1
    assert _arm(document, "transformers")["identical_to_plain"] is None


def test_loops_are_seen_and_left_out() -> None:
    assert repeats([1, 2, 3, 4, 5, 6, 7, 8] * 3)
    assert repeats([5] * 10)
    assert not repeats([1, 2, 3, 4, 5, 6, 7, 8] * 2)
    assert not repeats(list(range(100)))
    made = results(
        [
            Measurement("plain", "loop", "c", 0, 9, timing([1] * 20, 1.0, ids=[3] * 20)),
            Measurement("suffix", "loop", "c", 0, 9, timing([10, 10], 0.01, ids=[3] * 20)),
            Measurement("plain", "free", "c", 0, 9, timing([1] * 20, 1.0)),
            Measurement("suffix", "free", "c", 0, 9, timing([10, 10], 0.5)),
        ]
    )
    suffix = _arm(made.document(), "suffix")
    assert suffix["decode_tokens_per_second"] == pytest.approx(20 / 0.51)
    assert suffix["without_loops"]["decode_tokens_per_second"] == pytest.approx(20)
    assert suffix["without_loops"]["answers"] == 1


def test_disturbed_questions_are_left_out_for_all_arms_unless_most_are() -> None:
    def measured(question: str, arm: str, seconds: float, other: float) -> Measurement:
        return Measurement(arm, question, "c", 0, 9, timing([1] * 9, seconds), other)

    made = results(
        [
            *(measured(q, arm, 1.0, 0.01) for q in "ab" for arm in ("plain", "suffix")),
            measured("c", "plain", 1.0, 0.0),
            measured("c", "suffix", 50.0, 1.2),
        ]
    )
    document = made.document()
    assert document["disturbed"] == {"questions": ["c"], "left_out": True}
    assert [entry["answers"] for entry in document["arms"]] == [2, 2]
    assert _arm(document, "suffix")["decode_tokens_per_second"] == pytest.approx(8.0)
    made.measurements = [each for each in made.measurements if each.question != "a"]
    made.measurements.append(measured("d", "plain", 1.0, 0.9))
    assert made.document()["disturbed"] == {"questions": ["c", "d"], "left_out": False}
    assert _arm(made.document(), "suffix")["answers"] == 2


def test_bystanders_do_not_count_our_own_work() -> None:
    others = Bystanders([])
    others.start()
    total = sum(i * i for i in range(3_000_000))
    own_work = others.processors()
    assert total > 0
    assert own_work is not None
    assert own_work < 1.9  # on an idle machine near 0; a loop counted as other work would add a whole processor


def test_kept_and_read_again(tmp_path: Path) -> None:
    made = _two_arms()
    made.skipped["vllm"] = "not here"
    made.save(tmp_path / "r.json")
    again = Results.load(tmp_path / "r.json")
    assert again.document() == made.document()
    assert list(tmp_path.iterdir()) == [tmp_path / "r.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"r\.json"):
        Results.load(tmp_path / "r.json")


def test_a_question_is_finished_when_every_arm_answered_every_turn() -> None:
    made = _two_arms()
    made.measurements.append(Measurement("plain", "c", "chat", 0, 9, timing([1] * 9, 1.0)))
    assert finished(made, {"a": 1, "b": 2, "c": 1}) == {"a"}


def test_statistics() -> None:
    assert quartiles([4, 1, 2, 3, 5]) == (2, 3, 4)
    assert quartiles([]) == (0, 0, 0)
    found = ratio_of_rates([10, 10], [1, 3], [10, 10], [2, 6])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    spread = mean_interval([0.0, 1.0] * 50)
    assert spread.value == 0.5
    assert 0.35 < spread.low < 0.45 < 0.55 < spread.high < 0.65
    # Values that come in long stretches say less than as many independent ones.
    stretches = [0.0] * 50 + [1.0] * 50
    apart, together = mean_interval(stretches), mean_interval(stretches, block=10)
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


# Comparing

RATES = {"plain": 70.0, "suffix": 150.0, "transformers": 18.0}


def _worse(before: Results, after: Results) -> set[str]:
    return {verdict.arm for verdict in compare(before, after) if verdict.worse}


@pytest.mark.parametrize("seed", range(10))
def test_a_regression_of_a_tenth_is_caught(seed: int) -> None:
    slower = {**RATES, "suffix": RATES["suffix"] * 0.9}
    assert _worse(noisy(RATES, seed=seed), noisy(slower, seed=100 + seed)) == {"suffix"}


@pytest.mark.parametrize("seed", range(10))
def test_noise_and_drift_pass(seed: int) -> None:
    assert _worse(noisy(RATES, seed=seed), noisy(RATES, seed=200 + seed)) == set()


def test_without_another_program_plain_is_the_control() -> None:
    ours = {"plain": 70.0, "suffix": 150.0}
    slower = {**ours, "suffix": 135.0}
    verdicts = compare(noisy(ours, seed=1, drift=0), noisy(slower, seed=2, drift=0))
    assert [v.arm for v in verdicts if v.worse] == ["suffix"]
    assert "relative to plain" in next(v.sentence for v in verdicts if v.worse)


def test_a_program_that_changed_is_no_control() -> None:
    before, after = noisy(RATES, seed=1), noisy(RATES, seed=2)
    after.provenance["arms"] = {"transformers": {"transformers": "new"}}
    assert not any("relative to transformers" in verdict.sentence for verdict in compare(before, after))


def test_a_slower_peer_is_not_ours_to_judge() -> None:
    before, after = noisy(RATES, seed=1, drift=0), noisy({**RATES, "transformers": 9.0}, seed=2, drift=0)
    assert _worse(before, after) == set()


def test_other_tokens_are_worse_at_any_speed() -> None:
    before = _two_arms()
    before.measurements = [
        Measurement(e.arm, e.question, e.category, 0, 9, timing([1] * 9, e.timing.decode_seconds))
        for e in before.measurements
    ]
    after = results(before.measurements)
    broken = after.measurements[3]
    after.measurements[3] = Measurement("suffix", broken.question, "edit", 0, 9, timing([1] * 9, 1.0, ids=[9] * 9))
    found = [verdict.sentence for verdict in compare(before, after) if verdict.worse]
    assert found == ["suffix: 1 of 2 answers equal plain's, 2 before: worse"]


def test_unlike_runs_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        compare(noisy(RATES, seed=1), results(noisy(RATES, seed=2).measurements, 0.7))


# Drawing


class _Parser(HTMLParser):
    """Checks that tags close in order, and gathers what would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone() -> None:
    made = _two_arms()
    made.skipped["<b>evil</b>"] = "a & b"
    made.complete = False
    text = page(json.loads(made.dumps()))
    parser = _Parser()
    parser.feed(text)
    assert parser.open == []
    assert parser.loaded == []
    assert not re.search(r"https?://|<script|@import|url\(", text)
    assert "&lt;b&gt;evil&lt;/b&gt;" in text
    assert "Incomplete" in text
    for words in ("suffix", "4.0", "By category", "Acceptance per position", "3.00 (1.00-6.00)"):
        assert words in text


def test_charts_are_png_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from outrider.bench.figures import draw

    files = draw(json.loads(_two_arms().dumps()), tmp_path / "plots")
    assert [file.name for file in files] == ["arms.png", "categories.png", "acceptance.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
