"""One head, two engines: acceptance of a head folder in vLLM and in Outrider on the same prompts, greedy, bf16.

    python benchmarks/vllm_head.py prompts --questions spec_bench.jsonl --out prompts.jsonl
    python benchmarks/vllm_head.py vllm --head HEAD --prompts prompts.jsonl --out vllm.json    # where vLLM is
    python benchmarks/vllm_head.py ours --head HEAD --prompts prompts.jsonl --out ours.json
    python benchmarks/vllm_head.py table vllm.json ours.json [--within 0.05]

Prompts travel as token ids, so tokenizers play no part. Acceptance length = 1 + accepted / drafts, where a draft is a
target pass that verified at least one token; vLLM counts what it accepts beyond the end of an answer, we do not, so
`tokens_per_pass` (tokens kept, less the one vLLM's prefill gives, per pass) is reported beside it. A step of ours on a
GPU has a fixed number of rows, so large batches shorten drafts: `ours` ends with an error where that happens. `table`
exits with status 1 where the two acceptance lengths differ by more than `--within`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.core.request import StepTrace

CHAT = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
"""Spec-Bench's names for the kinds of MT-Bench; five questions each are too few to tell apart."""


@dataclass(frozen=True)
class Prompt:
    prompt_ids: list[int]
    category: str


@dataclass
class Tally:
    """What came of some prompts. `per_position[i]`: drafts of which more than i tokens were accepted."""

    requests: int = 0
    tokens: int = 0
    drafts: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    free_tokens: int = 0
    """Tokens that took no counted pass: those of vLLM's prefills, and of passes that verified nothing."""
    short: int = 0
    """Drafts shorter than asked for although the answer had room: a batch too large for the device's steps."""

    def add(self, other: Tally) -> None:
        size = max(len(self.per_position), len(other.per_position))
        padded = [tally.per_position + [0] * (size - len(tally.per_position)) for tally in (self, other)]
        self.per_position = [a + b for a, b in zip(*padded, strict=True)]
        for name in ("requests", "tokens", "drafts", "accepted", "free_tokens", "short"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def acceptance_length(self) -> float:
        return 1 + self.accepted / max(1, self.drafts)

    def report(self) -> dict[str, Any]:
        return asdict(self) | {
            "acceptance_length": self.acceptance_length,
            "tokens_per_pass": (self.tokens - self.free_tokens) / max(1, self.drafts),
            "rate_per_position": [count / max(1, self.drafts) for count in self.per_position],
        }


Run = Callable[[list[list[int]]], tuple[list[list[int]], Tally]]
"""Answers a batch of prompts: the ids generated for each, and the tally of all."""


def main() -> None:
    options = _arguments()
    {"prompts": write_prompts, "vllm": run_vllm, "ours": run_ours, "table": compare}[options.command](options)


def write_prompts(options: argparse.Namespace) -> None:
    """Spec-Bench questions as token ids: first turn, through the target's chat template."""
    from outrider.bench.questions import read_questions, spread
    from outrider.models.checkpoints.checkpoint import open_checkpoint
    from outrider.models.checkpoints.progress import SilentProgress

    tokenizer = open_checkpoint(options.target, SilentProgress()).tokenizer
    with options.out.open("w") as file:
        for question in spread(read_questions(options.questions), options.limit):
            ids = tokenizer.apply_chat_template([{"role": "user", "content": question.turns[0]}])
            category = "chat" if question.category in CHAT else question.category
            file.write(json.dumps(asdict(Prompt(list(ids), category))) + "\n")


def run_vllm(options: argparse.Namespace) -> None:
    prompts = read_prompts(options.prompts)
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # counters live in this process
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    start = perf_counter()
    import torch
    import vllm

    folder = target_folder(options.target)
    llm = vllm.LLM(
        model=str(folder),
        dtype="bfloat16",
        seed=0,
        skip_tokenizer_init=True,
        enforce_eager=not options.compiled,  # starts in a third of the time
        max_model_len=max(len(prompt.prompt_ids) for prompt in prompts) + options.tokens + options.draft_length + 8,
        max_num_seqs=options.batch,
        enable_prefix_caching=False,
        disable_log_stats=False,  # without statistics there are no counters
        speculative_config={
            "method": "eagle3",
            "model": str(options.head.resolve()),
            "num_speculative_tokens": options.draft_length,
        },
        **({"gpu_memory_utilization": options.memory_share} if torch.cuda.is_available() else {}),
    )
    params = vllm.SamplingParams(
        temperature=0.0,
        max_tokens=options.tokens,
        stop_token_ids=eos_ids(folder),
        detokenize=False,
    )

    def run(batch: list[list[int]]) -> tuple[list[list[int]], Tally]:
        before = _vllm_counters(llm)
        results = llm.generate([{"prompt_token_ids": ids} for ids in batch], params, use_tqdm=False)
        after = _vllm_counters(llm)
        outputs = [list(result.outputs[0].token_ids) for result in results]
        return outputs, Tally(
            requests=len(batch),
            tokens=sum(map(len, outputs)),
            drafts=after["drafts"][0] - before["drafts"][0],
            accepted=after["accepted"][0] - before["accepted"][0],
            per_position=[b - a for a, b in zip(before["per_position"], after["per_position"], strict=True)],
            free_tokens=len(batch),
        )

    about = {"engine": "vllm", "version": vllm.__version__, "compiled": options.compiled}
    _measure(run, prompts, options, about, start)


def _vllm_counters(llm: Any) -> dict[str, list[int]]:
    names = {
        "vllm:spec_decode_num_drafts": "drafts",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
        "vllm:spec_decode_num_accepted_tokens_per_pos": "per_position",
    }
    found = {names[metric.name]: metric for metric in llm.get_metrics() if metric.name in names}
    return {
        name: [int(v) for v in (metric.values if name == "per_position" else [metric.value])]
        for name, metric in found.items()
    }


def run_ours(options: argparse.Namespace) -> None:
    import outrider
    from outrider.control.controller import FixedLength

    prompts = read_prompts(options.prompts)
    start = perf_counter()
    plain = outrider.LLM(
        options.target,
        drafter="none",
        dtype="bf16",
        device=options.device,
        max_batch=options.batch,
        max_context=max(len(prompt.prompt_ids) for prompt in prompts) + options.tokens + 8,
    )
    llm = plain.with_drafter(f"head:{options.head}", FixedLength(options.draft_length, tree=False))
    params = outrider.SamplingParams(temperature=0.0, max_tokens=options.tokens)

    def run(batch: list[list[int]]) -> tuple[list[list[int]], Tally]:
        tally = Tally(per_position=[0] * options.draft_length)
        completions = llm.generate(batch, params, trace=True)
        for completion in completions:
            steps = [step for step in completion.trace if len(step.draft)]
            paths = [len(step.path) for step in steps]
            tally.add(
                Tally(
                    requests=1,
                    tokens=len(completion.token_ids),
                    drafts=len(steps),
                    accepted=sum(paths),
                    per_position=[sum(path > i for path in paths) for i in range(options.draft_length)],
                    free_tokens=len(completion.trace) - len(steps),
                    short=cut_drafts(completion.trace, options.draft_length, options.tokens),
                )
            )
        return [list(completion.token_ids) for completion in completions], tally

    _measure(run, prompts, options, {"engine": "outrider", "version": outrider.__version__}, start)


def cut_drafts(trace: Sequence[StepTrace], draft_length: int, max_tokens: int) -> int:
    """Chains shorter than `draft_length` that the answer still had room for, steps that drafted nothing aside."""
    written = short = 0
    for step in trace:
        short += 0 < len(step.draft) < min(draft_length, max_tokens - written - 1)
        written += len(step.path) + (step.token is not None)
    return short


def _measure(run: Run, prompts: list[Prompt], options: argparse.Namespace, about: dict[str, Any], start: float) -> None:
    """Category by category, at most `--batch` prompts at once; writes the result."""
    import torch

    started = perf_counter()
    total, categories = Tally(), dict[str, Tally]()
    outputs: list[dict[str, Any]] = []
    for category in dict.fromkeys(prompt.category for prompt in prompts):
        chosen = [prompt.prompt_ids for prompt in prompts if prompt.category == category]
        tally = categories.setdefault(category, Tally())
        for first in range(0, len(chosen), options.batch):
            ids, part = run(chosen[first : first + options.batch])
            if part.short > 0.01 * part.drafts:
                sys.exit(
                    f"{part.short} of {part.drafts} drafts were shorter than {options.draft_length} tokens: a step of "
                    f"this device has no room for as many in a batch of {options.batch}; lower --batch"
                )
            tally.add(part)
            outputs += [{"category": category, "ids": answer} for answer in ids]
        total.add(tally)
        print(f"{category}: {tally.acceptance_length:.3f} over {tally.drafts} drafts", file=sys.stderr, flush=True)
    if not total.drafts:
        sys.exit("nothing was drafted: the head was not used")
    result = about | {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "target": Path(options.target).name,
        "draft_length": options.draft_length,
        "max_tokens": options.tokens,
        "start_seconds": started - start,
        "seconds": perf_counter() - started,
        "overall": total.report(),
        "categories": {name: tally.report() for name, tally in categories.items()},
        "outputs": outputs,
    }
    options.out.write_text(json.dumps(result))
    overall = {key: value for key, value in result.items() if key not in ("categories", "outputs")}
    print(json.dumps(overall, indent=1), flush=True)


def compare(options: argparse.Namespace) -> None:
    theirs, ours = (json.loads(path.read_text()) for path in options.results)
    names = [f"{result['engine']} {result['version']}" for result in (theirs, ours)]
    print(f"| | drafts | {names[0]} | {names[1]} | ours / theirs | tokens per pass |\n|---|---|---|---|---|---|")
    both = [("all", theirs["overall"], ours["overall"])]
    both += [(name, tally, ours["categories"][name]) for name, tally in theirs["categories"].items()]
    for name, a, b in both:
        lengths = a["acceptance_length"], b["acceptance_length"]
        print(
            f"| {name} | {a['drafts']} / {b['drafts']} | {lengths[0]:.3f} | {lengths[1]:.3f} "
            f"| {lengths[1] / lengths[0]:.3f} | {a['tokens_per_pass']:.3f} / {b['tokens_per_pass']:.3f} |"
        )
    for name, result in zip(names, (theirs, ours), strict=True):
        rates = " ".join(f"{rate:.3f}" for rate in result["overall"]["rate_per_position"])
        print(f"accepted at each position, {name}: {rates}")
    pairs = [(a["ids"], b["ids"]) for a, b in zip(theirs["outputs"], ours["outputs"], strict=True)]
    same = sum(a == b for a, b in pairs)
    print(f"answers equal token for token: {same} of {len(pairs)} (bf16 rounds differently in the two)")
    ratio = ours["overall"]["acceptance_length"] / theirs["overall"]["acceptance_length"]
    verdict = abs(ratio - 1) <= options.within
    print(f"overall within {options.within:.0%}: {'yes' if verdict else 'NO'} ({ratio - 1:+.2%})")
    sys.exit(0 if verdict else 1)


def read_prompts(path: Path) -> list[Prompt]:
    return [Prompt(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]


def target_folder(target: str) -> Path:
    """The target as a Hugging Face folder: one that is named, else the bf16 folder a catalogue model is kept in."""
    if Path(target).is_dir():
        return Path(target).resolve()
    from outrider.models.checkpoints.catalog import model_path

    folder = model_path(target)
    if not (folder / "model.safetensors").is_file():
        sys.exit(f"{target} is not here; fetch it with `outrider models pull {target}`")
    return folder


def eos_ids(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        if (file := folder / name).is_file() and (ids := json.loads(file.read_text()).get("eos_token_id")) is not None:
            return [ids] if isinstance(ids, int) else list(ids)
    return []


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prompts = commands.add_parser("prompts")
    prompts.add_argument("--questions", type=Path, required=True, help="a file in Spec-Bench's format")
    prompts.add_argument("--limit", type=int, help="at most so many, spread over the categories")
    table = commands.add_parser("table")
    table.add_argument("results", type=Path, nargs=2, help="vLLM's result, then ours")
    table.add_argument("--within", type=float, default=0.05)
    runs = [commands.add_parser("vllm"), commands.add_parser("ours")]
    runs[0].add_argument("--compiled", action="store_true", help="torch.compile and CUDA graphs: starts later")
    runs[0].add_argument("--memory-share", type=float, default=0.3, help="of the GPU's memory, for vLLM")
    runs[1].add_argument("--device", default="auto")
    for run, batch in zip(runs, (64, 8), strict=True):  # a step of ours on a GPU has few rows for drafts
        run.add_argument("--head", type=Path, required=True)
        run.add_argument("--prompts", type=Path, required=True)
        run.add_argument("--tokens", type=int, default=128)
        run.add_argument("--draft-length", type=int, default=5)
        run.add_argument("--batch", type=int, default=batch)
    for command in (prompts, *runs):
        command.add_argument("--target", default="smollm2-135m", help="catalogue name or Hugging Face folder")
        command.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
