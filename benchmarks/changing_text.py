"""How `auto` follows a text that changes: what it drafts from step to step, as numbers and a picture.

    python benchmarks/changing_text.py [--tokens 160] [--device auto] [--out FILE.json] [--plot FILE.png]

One engine writes four texts after another: a chat answer, code that repeats, tokens drawn almost at random, and
another chat answer. Noted of every step: nodes verified by who proposed them, and how many were accepted. Plain
decoding writes the same texts in turns with it, and must write the same tokens. Leave the machine otherwise idle.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

from outrider import LLM, SamplingParams
from outrider.models.cpu import cpu_name

CODE = '''def area_of_table(width, height):
    """The area of a table."""
    if width < 0 or height < 0:
        raise ValueError("sizes must not be negative")
    return width * height


'''
QUESTIONS = (
    "What should I think of before I plant a garden? Answer in a few paragraphs.",
    "Tell me about a day in the life of a lighthouse keeper.",
)


def texts(llm: LLM, tokens: int) -> list[tuple[str, list[int], SamplingParams]]:
    chat, other = (llm.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS)
    code = llm.tokenizer.encode(4 * CODE)
    greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    random = SamplingParams(temperature=4.0, seed=1, max_tokens=tokens, ignore_eos=True)
    return [("chat", chat, greedy), ("code", code, greedy), ("random", chat[:20], random), ("chat", other, greedy)]


def written(
    llm: LLM, prompt: list[int], params: SamplingParams, *, speculate: bool
) -> tuple[list[Any], list[int], float]:
    """The steps, the tokens, and seconds from the first token on."""
    steps: list[Any] = []
    tokens: list[int] = []
    begun = 0.0
    for chunk in llm.stream([prompt], params, speculate=speculate):
        begun = begun or perf_counter()
        draft, path = chunk.step.draft, chunk.step.path
        by = Counter(draft.proposer(node) for node in range(len(draft)))
        steps.append({"drafted": dict(by), "accepted": len(path)})
        tokens += chunk.token_ids
    return steps, tokens, perf_counter() - begun


def run(llm: LLM, tokens: int) -> list[dict[str, Any]]:
    found = []
    for name, prompt, params in texts(llm, tokens):
        _, plain, plain_seconds = written(llm, prompt, params, speculate=False)
        steps, auto, seconds = written(llm, prompt, params, speculate=True)
        assert auto == plain, f"{name}: other tokens than plain decoding's"
        found.append({"text": name, "speed": plain_seconds / seconds, "steps": steps})
        print(
            f"{name:11} {plain_seconds / seconds:5.2f}x plain, {len(auto) / len(steps):.2f} tokens a pass", flush=True
        )
    return found


def draw(found: list[dict[str, Any]], where: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 3.4))
    names = sorted({name for part in found for step in part["steps"] for name in step["drafted"]})
    colours = dict(zip(names, ("#3b6fb6", "#e08a2e", "#7a9f35", "#8a5ea8"), strict=False))
    start = 0
    for i, part in enumerate(found):
        steps = part["steps"]
        at = range(start, start + len(steps))
        floor = [0] * len(steps)
        for name in names:
            nodes = [step["drafted"].get(name, 0) for step in steps]
            axes.bar(at, nodes, width=1.0, bottom=floor, color=colours[name], label=name if not i else None)
            floor = [a + b for a, b in zip(floor, nodes, strict=True)]
        accepted = [step["accepted"] for step in steps]
        axes.step(at, accepted, where="mid", color="black", linewidth=0.9, label=None if i else "accepted")
        axes.axvspan(start - 0.5, start + len(steps) - 0.5, color="#000000", alpha=0.04 * (i % 2), zorder=0)
        axes.text(
            start + len(steps) / 2, 17.4, f"{part['text']}\n{part['speed']:.2f}x", ha="center", va="bottom", fontsize=9
        )
        start += len(steps)
    axes.set_xlim(-0.5, start - 0.5)
    axes.set_ylim(0, 17)
    axes.set_xlabel("step")
    axes.set_ylabel("nodes verified")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(1.0, -0.22, where, transform=axes.transAxes, ha="right", fontsize=8, color="#666666")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    llm = LLM(device=options.device, threads=options.threads, max_batch=1, max_context=1024)
    if options.device in ("auto", "cpu"):
        llm.costs()
    where = f"{cpu_name()}, {options.device}"
    found = run(llm, options.tokens)
    if options.out:
        options.out.write_text(json.dumps({"machine": where, "texts": found}) + "\n", encoding="utf-8")
    if options.plot:
        draw(found, where, options.plot)


if __name__ == "__main__":
    main()
