"""`outrider bench`: measure, and judge what was measured. Thin: the work is in `outrider.bench`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.config import configured
from outrider.cli.help import CONTEXT, HeadedCommand, HeadedGroup
from outrider.cli.options import DEFAULT_MODEL
from outrider.cli.screen import answers, note

if TYPE_CHECKING:
    from outrider.bench.results import Results
    from outrider.bench.waves import Cell

DEFAULT_ARMS, OWN_ARMS, SHORT_ARMS = "plain,auto,suffix,transformers", "plain,auto,suffix", "plain,auto"
_QUICK_QUESTIONS, _QUICK_TOKENS, _QUICK_CONCURRENCY, _QUICK_REQUESTS = 7, 20, "1,4", 3

_what = partial(typer.Option, rich_help_panel="What is measured")
_where = partial(typer.Option, rich_help_panel="Model")
_output = partial(typer.Option, rich_help_panel="Output")

Html = Annotated[Path | None, _output(metavar="FILE", help="Write a page with charts, in one file.")]
Plots = Annotated[Path | None, _output(metavar="DIR", help="Write the charts as PNG files (needs matplotlib).")]

bench = typer.Typer(
    cls=HeadedGroup,
    help="Measure arms (ways to decode, ours and other programs') interleaved on the same prompts and weights.",
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
)


@bench.callback()
@configured
def measure(
    context: typer.Context,
    arms: Annotated[
        list[str] | None,
        _what(
            metavar="ARM,…",
            help="plain, auto (what everybody gets by default), suffix, ngram, head, model:PATH; with a length as in "
            "suffix:8 or head:tree32; transformers, transformers-static, -lookup, -assisted:PATH; llama.cpp, openvino "
            "(each also -lookup); vllm, vllm-ngram. @DTYPE after any of them, as in plain@fp32, sets its number "
            f"format. Not given: {DEFAULT_ARMS}; with --twin {OWN_ARMS}; with --concurrency or --quick "
            f"{SHORT_ARMS}.",
        ),
    ] = None,
    questions: Annotated[
        Path | None, _what(metavar="FILE", help="Ask these, in Spec-Bench's format, instead of the built-in suite.")
    ] = None,
    limit: Annotated[
        int | None, _what(min=1, metavar="N", help="At most N questions, spread over the categories.")
    ] = None,
    max_tokens: Annotated[int, _what(min=2, metavar="N", help="Tokens per answer; the end of text is ignored.")] = 128,
    temperature: Annotated[float, _what(min=0.0, metavar="T", help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int, _what(metavar="N", help="Fixes the randomness at temperatures above 0.")] = 0,
    concurrency: Annotated[
        str | None,
        _what(
            metavar="N,…",
            help="Instead: is an arm of ours ever slower than plain, with so many requests in flight? As in 1,4,16,64. "
            "Exit code 1 if a cell fails.",
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        _what(
            metavar="HOW,…",
            help="How those requests are sampled: greedy, tT, tT-pP or tT-kK, as in greedy,t0.7,t0.7-p0.9,t1-k50.",
        ),
    ] = None,
    rounds: Annotated[
        int, _what(min=2, metavar="N", help="Rounds of every cell (concurrency and sampling), arms in turn.")
    ] = 5,
    quick: Annotated[
        bool,
        _what(
            "--quick",
            help=f"A first impression within a minute: {_QUICK_QUESTIONS} short answers per arm, and whether auto is "
            f"ever slower than plain with {_QUICK_CONCURRENCY.replace(',', ' and ')} requests in flight.",
        ),
    ] = False,
    endpoint: Annotated[
        str | None,
        _what(metavar="URL", help="Also measure an OpenAI-compatible server, as in http://localhost:8000/v1."),
    ] = None,
    model: Annotated[
        str, _where("--model", "-m", metavar="MODEL", help="Known name, model folder, GGUF file or hub id.")
    ] = DEFAULT_MODEL,
    dtype: Annotated[
        str, _where("--dtype", metavar="DTYPE", help="Number format of arms that do not name their own.")
    ] = "bf16",
    device: Annotated[str, _where("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int | None, _where(min=1, metavar="N", help="CPU threads of every arm.")] = None,
    twin: Annotated[
        str | None,
        _where(
            metavar="SHAPE",
            help="Measure a cost twin: the same text at the cost of a model of this shape (8b, 1b, tiny).",
        ),
    ] = None,
    synthetic_acceptance: Annotated[
        float | None,
        _what(
            metavar="L",
            help="For speed alone: drafts are accepted by the die, L tokens a step; the text is not the model's.",
        ),
    ] = None,
    out: Annotated[
        Path | None, _output(metavar="FILE", help="Keep the result here; saved after every question and round.")
    ] = None,
    resume: Annotated[
        Path | None, _output(metavar="FILE", help="Go on with an unfinished result (the same options again).")
    ] = None,
    json: Annotated[bool, _output("--json", help="Print the result as JSON, and nothing else, on stdout.")] = False,
    html: Html = None,
    plots: Plots = None,
) -> None:
    """Measure decoding speed: arms interleaved question by question on the same prompts and weights."""
    if context.invoked_subcommand is not None:
        return
    from outrider.bench.names import pairs, parse_all
    from outrider.bench.questions import builtin, read_questions, spread

    only_cells = concurrency is not None or sampling is not None
    if only_cells and temperature:
        from outrider.errors import InvalidRequest

        raise InvalidRequest(f"temperature: with --concurrency it is written --sampling t{temperature:g}")
    usual = SHORT_ARMS if only_cells or quick else OWN_ARMS if twin else DEFAULT_ARMS
    wanted = arms or [usual]
    names = parse_all([*wanted, "endpoint"] if endpoint and "endpoint" not in ",".join(wanted) else wanted)
    chosen = read_questions(questions) if questions else builtin()
    cells = _cells(concurrency or "1", sampling or "greedy") if only_cells else []
    if quick:
        limit, max_tokens = min(limit or _QUICK_QUESTIONS, _QUICK_QUESTIONS), min(max_tokens, _QUICK_TOKENS)
        if not only_cells and synthetic_acceptance is None and pairs([name.text for name in names]):
            cells = _cells(_QUICK_CONCURRENCY, "greedy")
    asked = spread(chosen, limit)
    plots_possible(plots)
    from outrider.bench.results import Results
    from outrider.bench.run import BenchConfig, run
    from outrider.cli.progress import TimedProgress
    from outrider.models.dtypes import short_name

    config = BenchConfig(
        model=model,
        arms=names,
        questions=asked,
        suite=questions.name if questions else "built-in",
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        dtype=short_name(dtype),
        device=_device(device),
        threads=threads,
        endpoint=endpoint,
        twin=twin,
        synthetic_acceptance=synthetic_acceptance,
        one_by_one=not only_cells,
        cells=cells,
        cell_questions=sorted(asked, key=lambda question: len(question.turns[0]))[:_QUICK_REQUESTS] if quick else None,
        rounds=rounds,
    )
    earlier = Results.load(resume) if resume else None
    kept = out or resume

    def keep(results: Results) -> None:
        if kept is not None:
            results.save(kept)

    results = run(config, TimedProgress(), keep, earlier)
    _finish(results, kept, json, html, plots)
    if only_cells and results.fails:
        raise typer.Exit(1)


@bench.command(cls=HeadedCommand)
@configured
def report(
    result: Annotated[Path, typer.Argument(metavar="FILE", help="A result of `outrider bench --out`.")],
    html: Html = None,
    plots: Plots = None,
) -> None:
    """Show a result again, and draw it: from the file alone, nothing is measured."""
    from outrider.bench.results import Results

    plots_possible(plots)
    document = Results.load(result).document()
    _show(document)
    _draw(document, html, plots)


@bench.command(cls=HeadedCommand)
@configured
def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The earlier result.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The later result, of the same questions.")],
) -> None:
    """Judge AFTER against BEFORE with the noise in mind; exit code 1 if some arm clearly got worse."""
    from outrider.bench.compare import compare as judge
    from outrider.bench.results import Results

    verdicts = judge(Results.load(before), Results.load(after))
    for verdict in verdicts:
        answers().print(verdict.sentence)
    raise typer.Exit(1 if any(verdict.worse for verdict in verdicts) else 0)


@bench.command(cls=HeadedCommand)
@configured
def install(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="transformers, llama.cpp, openvino or vllm.")],
) -> None:
    """Install a program to be measured, in an environment of its own inside Outrider's cache."""
    from outrider.bench.environments import PROGRAMS
    from outrider.bench.environments import install as make

    if peer in PROGRAMS:
        note(f"installing {peer}: {PROGRAMS[peer].note}")
    note(f"{peer} is in {make(peer)}")


def plots_possible(plots: Path | None) -> None:
    """Find out before an hour of measuring, not after."""
    if plots is None:
        return
    from importlib.util import find_spec

    from outrider.errors import InvalidRequest

    if find_spec("matplotlib") is None:
        raise InvalidRequest('plots: matplotlib is missing; install it with: pip install "outrider[bench]"')


def _cells(concurrency: str, sampling: str) -> list[Cell]:
    from outrider.bench.sampling import parse_all
    from outrider.bench.waves import Cell, parse_concurrency

    methods = parse_all(sampling)
    return [Cell(number, method.name) for method in methods for number in parse_concurrency(concurrency)]


def _device(wanted: str) -> str:
    from outrider.models.load import placement

    place = placement(device=wanted, dtype="auto", bitwise=None, threads=None, max_batch=1, max_context=None)
    return str(place.device)


def _finish(results: Results, kept: Path | None, json: bool, html: Path | None, plots: Path | None) -> None:
    if kept is not None:
        results.save(kept)
    if json:
        print(results.dumps(), end="", flush=True)
    elif results.measured:
        _show(results.document())
    if results.measured:
        _draw(results.document(), html, plots)
    if not results.complete:
        where = f"; {kept} has it, --resume {kept} goes on" if kept else ""
        note(f"stopped: kept what every arm had finished{where}")
        raise KeyboardInterrupt


def _show(document: dict[str, Any]) -> None:
    from outrider.bench.table import tables

    console = answers()
    for part in tables(document):
        console.print(part)


def _draw(document: dict[str, Any], html: Path | None, plots: Path | None) -> None:
    if html is not None:
        from outrider.bench.page import page

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(page(document), encoding="utf-8")
        note(f"wrote {html}")
    if plots is not None:
        from outrider.bench.figures import draw

        for path in draw(document, plots):
            note(f"wrote {path}")
