"""A GGUF file in Outrider and in transformers' own reader: logits, greedy tokens, tokenizer and chat template.

    python benchmarks/gguf_against_transformers.py MODEL.gguf [--tokens 64] [--prompts N] [--drafter auto] [--json]
                                                   [--out FILE]

Both decode in fp32 on the CPU, one after the other so that one copy of the weights is in memory at a time. Outrider
runs as `LLM` does out of the box, drafting; its tokenizer feeds both, and is compared with transformers' on texts of
its own. transformers reads GGUF files only where `accelerate` is installed. `logits apart` is the largest difference
over the prompt, `spread` the standard deviation of the logits. Where the tokens part, `gap` is how far apart
transformers held the two logits: rounding explains a gap near zero.
"""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from outrider import LLM, SamplingParams
from outrider.bench.measured_model import MeasuredModel
from outrider.core.model import Rows
from outrider.models.checkpoints.progress import SilentProgress
from outrider.models.checkpoints.tokenizer import Tokenizer

QUESTIONS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "What is the capital of France, and what is it known for?",
    "Explain in two sentences why the sky is blue.",
)
BEGINNINGS = ("def quicksort(items):\n", "The three laws of thermodynamics are")
TEXTS = (
    *QUESTIONS,
    *BEGINNINGS,
    "It's 12,345.67 €; don't say 1234567890!",
    "  two  spaces\tand\ttabs \n\n\n  and lines\r\n",
    "Grüße aus Köln, 東京の天気, Привет, שלום, 👩‍👩‍👧 🇫🇷 e\u0301",
    "for (int i = 0; i < 10; ++i) { x[i] += f(x, i) % 3; } // ok",
    "<|im_start|>user\nhi<|im_end|>\n<s></s>",
    "",
)
CHATS = (
    [{"role": "user", "content": QUESTIONS[0]}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": " And 2 + 2?\n"},
    ],
)


@dataclass(slots=True)
class Line:
    """One prompt: what both wrote."""

    prompt: str
    prompt_tokens: int
    tokens: int = 0
    equal: bool = False
    first_difference: int | None = None
    gap: float | None = None
    logits_max_difference: float = 0.0
    logits_spread: float = 0.0
    ours: str = ""
    theirs: str = ""


def prompts(tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    asked = [(text, [{"role": "user", "content": text}]) for text in QUESTIONS]
    chats = [(text, tokenizer.apply_chat_template(chat)) for text, chat in asked if tokenizer.chat_template]
    return chats + [(text, tokenizer.encode(text)) for text in BEGINNINGS]


def ours(path: Path, drafter: str, wanted: list[list[int]], tokens: int) -> list[tuple[list[int], torch.Tensor]]:
    """For each prompt the greedy tokens, and the logits after every one of its tokens."""
    llm = LLM(str(path), drafter=drafter, dtype="fp32", device="cpu", max_batch=1, max_context=1024)
    params = SamplingParams(temperature=0, max_tokens=tokens)
    written = []
    for ids in wanted:
        slot = llm.model.open()
        logits = llm.model.forward([Rows.chain(slot, ids)]).clone()
        llm.model.close(slot)
        written.append((list(llm.generate([ids], params)[0].token_ids), logits))
    return written


def theirs(path: Path, eos: list[int], wanted: list[list[int]], tokens: int) -> list[tuple[list[int], torch.Tensor]]:
    """The same, with the logits of what was written as well."""
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    written = []
    for ids in wanted:
        with torch.inference_mode():
            out = model.generate(
                torch.tensor([ids]), max_new_tokens=tokens, do_sample=False, eos_token_id=eos, pad_token_id=eos[0]
            )
            written.append(([int(t) for t in out[0][len(ids) :]], model(out).logits[0]))
    return written


def compare(path: Path, tokenizer: Tokenizer, drafter: str, count: int | None, tokens: int) -> list[Line]:
    chosen = prompts(tokenizer)[:count]
    ids = [each for _, each in chosen]
    mine = ours(path, drafter, ids, tokens)
    gc.collect()
    reference = theirs(path, list(tokenizer.eos_token_ids), ids, tokens)
    lines = []
    for (text, prompt), (written, logits), (expected, full) in zip(chosen, mine, reference, strict=True):
        line = Line(text, len(prompt), len(expected), written == expected)
        line.logits_max_difference = float((logits - full[: len(prompt)]).abs().max())
        line.logits_spread = float(full.std())
        line.ours, line.theirs = tokenizer.decode(written), tokenizer.decode(expected)
        if not line.equal:
            pairs = enumerate(zip(written, expected, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(written), len(expected)))
            line.first_difference = at
            if at < min(len(written), len(expected)):
                row = full[len(prompt) + at - 1]
                line.gap = float(row[expected[at]] - row[written[at]])
        lines.append(line)
    return lines


def compare_tokenizers(path: Path, mine: Tokenizer) -> dict[str, Any]:
    """How many texts and chats both encode alike; those that differ, in full."""
    from transformers import AutoTokenizer

    peer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    differing: list[dict[str, Any]] = []

    def count(kind: str, what: Any, a: Any, b: Any) -> bool:
        if a != b:
            differing.append({"kind": kind, "of": what, "ours": a, "theirs": b})
        return bool(a == b)

    texts = [count("ids", text, mine.encode(text), list(peer(text)["input_ids"])) for text in TEXTS]
    back = [count("text", text, mine.decode(mine.encode(text, add_special_tokens=False)),
                  peer.decode(peer(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True))
            for text in TEXTS]  # fmt: skip
    chats = []
    if mine.chat_template is not None and peer.chat_template is not None:
        for chat in CHATS:
            shown = peer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            ids = list(peer(shown, add_special_tokens=False)["input_ids"])
            same = count("chat", chat, mine.render_chat(chat), shown)
            chats.append(same and count("chat ids", chat, mine.apply_chat_template(chat), ids))
    return {
        "texts": len(texts),
        "texts_equal": sum(texts),
        "decoded_equal": sum(back),
        "chats": len(chats),
        "chats_equal": sum(chats),
        "differing": differing,
    }


def show(console: Console, name: str, lines: list[Line], tokenizers: dict[str, Any]) -> None:
    table = Table(title=f"{name}, fp32, greedy: Outrider and transformers")
    for heading in ("prompt", "tokens", "same", "apart at", "gap", "logits apart", "spread"):
        table.add_column(heading, justify="left" if heading == "prompt" else "right")
    for line in lines:
        table.add_row(
            line.prompt.strip().splitlines()[0][:32],
            str(line.tokens),
            "yes" if line.equal else "NO",
            "" if line.first_difference is None else str(line.first_difference),
            "" if line.gap is None else f"{line.gap:.1e}",
            f"{line.logits_max_difference:.1e}",
            f"{line.logits_spread:.2f}",
        )
    console.print(table)
    t = tokenizers
    console.print(
        f"tokenizer: {t['texts_equal']} of {t['texts']} texts encode alike, {t['decoded_equal']} decode alike; "
        f"{t['chats_equal']} of {t['chats']} chats alike"
    )
    for case in t["differing"]:
        console.print(
            f"  {case['kind']} of {case['of']!r}:\n    ours   {case['ours']!r}\n    theirs {case['theirs']!r}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens written per prompt")
    parser.add_argument("--prompts", type=int, help="only the first N prompts")
    parser.add_argument("--drafter", default="auto", help="of Outrider's LLM")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    parser.add_argument("--out", type=Path, help="also keep the result here")
    asked = parser.parse_args()
    if find_spec("accelerate") is None:
        parser.error("transformers reads GGUF files with the help of accelerate: pip install accelerate")
    path = asked.model.expanduser().resolve()
    target = MeasuredModel(str(path), "fp32", "cpu", None, SilentProgress())
    tokenizer = target.checkpoint.tokenizer
    result: dict[str, Any] = {
        "provenance": {**target.provenance(torch.get_num_threads()), "model": path.name},
        "tokens": asked.tokens,
        "drafter": asked.drafter,
        "tokenizer": compare_tokenizers(path, tokenizer),
    }
    lines = compare(path, tokenizer, asked.drafter, asked.prompts, asked.tokens)
    result |= {
        "same_text": sum(line.equal for line in lines),
        "prompts": len(lines),
        "lines": [asdict(line) for line in lines],
    }
    if asked.json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        show(Console(), path.name, lines, result["tokenizer"])
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
