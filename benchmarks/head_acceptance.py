"""How many tokens a pass of the target brings with a head drafting for it, by kind of question.

    python benchmarks/head_acceptance.py --questions FILE [--head DIR] [--limit N] [--arms chain5,tree32,…] [--out FILE]

First turns of questions in Spec-Bench's format, chat template, at most 128 tokens, bf16. Tokens are counted, not
seconds, so that the answers can be written eight at a time. Every coupled answer is checked to be plain decoding's.
An answer loops if it says eight tokens three times; all figures are given without such answers, too.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams
from outrider.bench.measured_model import MeasuredModel
from outrider.bench.questions import read_questions
from outrider.control.controller import FixedLength
from outrider.core.request import Completion, VerifyRule
from outrider.drafters.head import HeadDrafter, HeadDrafterConfig
from outrider.models.checkpoints.progress import SilentProgress

CHAT = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
BATCH = 8


@dataclass(frozen=True)
class Arm:
    name: str
    nodes: int
    branching: int
    temperature: float = 0.0
    rule: VerifyRule = "coupled"


ARMS = {
    arm.name: arm
    for arm in (
        Arm("chain5", 5, 1),
        Arm("tree16", 16, 8),
        Arm("tree32", 32, 8),
        Arm("chain5 T=1", 5, 1, 1.0),
        Arm("tree32 T=1", 32, 8, 1.0),
        Arm("chain5 T=1 rejection", 5, 1, 1.0, "rejection"),
        Arm("tree32 T=1 rejection", 32, 8, 1.0, "rejection"),
    )
}


def loops(tokens: Sequence[int]) -> bool:
    return any(n >= 3 for n in Counter(tuple(tokens[i : i + 8]) for i in range(len(tokens) - 7)).values())


def summary(answers: Sequence[tuple[str, Completion]]) -> dict[str, Any]:
    by_kind: dict[str, list[Completion]] = defaultdict(list)
    for category, answer in answers:
        by_kind["chat" if category in CHAT else category].append(answer)

    def length(completions: Sequence[Completion]) -> float:
        return round(sum(len(c.token_ids) for c in completions) / max(1, sum(c.steps for c in completions)), 3)

    return {
        "answers": len(answers),
        "acceptance_length": length([answer for _, answer in answers]),
        "by_category": {kind: length(found) for kind, found in sorted(by_kind.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True, help="in Spec-Bench's format")
    parser.add_argument("--head", default="", help="a head's folder; the one that comes with the package if not given")
    parser.add_argument("--limit", type=int, help="questions, spread over the file")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    questions = read_questions(options.questions)
    if options.limit:
        questions = questions[:: max(1, len(questions) // options.limit)][: options.limit]
    llm = LLM(drafter=f"head:{options.head}" if options.head else "head", device=options.device, max_batch=BATCH)
    assert isinstance(llm.drafter, HeadDrafter)
    head = llm.drafter.head
    prompts = [llm.encode_chat([{"role": "user", "content": q.turns[0]}]) for q in questions]
    kept = [i for i, prompt in enumerate(prompts) if len(prompt) + 128 < llm.model.max_context]
    target = MeasuredModel("smollm2-135m", "bf16", options.device, None, SilentProgress())
    result: dict[str, Any] = {"provenance": target.provenance(0), "questions": len(kept), "arms": {}}
    plain: dict[float, list[Completion]] = {}

    def params(arm: Arm, i: int) -> SamplingParams:
        return SamplingParams(max_tokens=128, temperature=arm.temperature, top_k=0, top_p=1.0, seed=i, verify=arm.rule)

    for name in options.arms.split(","):
        arm = ARMS[name]
        ours = llm.with_drafter(
            HeadDrafter(head, llm.model.vocab_size, HeadDrafterConfig(branching=arm.branching)), FixedLength(arm.nodes)
        )
        asked = [params(arm, i) for i in kept]
        if arm.temperature not in plain and arm.rule == "coupled":
            plain[arm.temperature] = ours.generate([prompts[i] for i in kept], asked, speculate=False)
        answers = ours.generate([prompts[i] for i in kept], asked)
        pairs = [(questions[i].category, answer) for i, answer in zip(kept, answers, strict=True)]
        found = summary(pairs)
        found["without_loops"] = summary([(c, a) for c, a in pairs if not loops(a.token_ids)])
        if arm.rule == "coupled":
            same = [a.token_ids == p.token_ids for a, p in zip(answers, plain[arm.temperature], strict=True)]
            found["identical_to_plain"] = sum(same)
        result["arms"][name] = found
        print(f"{name:22}", json.dumps(found), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
