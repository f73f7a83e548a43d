"""Every option of `generate` and `chat`, once.

`Settings` is the single list: a field is an option, its annotation holds the flag and the help.
`takes_settings` turns the list into a command's parameters, so the two commands cannot drift apart.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from outrider.errors import InvalidRequest

if TYPE_CHECKING:
    from outrider.sampling.params import SamplingParams

DEFAULT_MODEL = "smollm2-135m"
"""As in `models/checkpoints/catalog.py`, repeated so that --help need not import it; a test compares them."""

Dtype = Literal["auto", "bf16", "fp16", "fp32", "int8", "fp8", "native", "bfloat16", "float16", "float32"]
"""As in `models/dtypes.py`; a test compares them."""

_model = partial(typer.Option, rich_help_panel="Model")
_speculation = partial(typer.Option, rich_help_panel="Speculation")
_sampling = partial(typer.Option, rich_help_panel="Sampling (not given: the model's own defaults)")
_output = partial(typer.Option, rich_help_panel="Output")

_SAMPLING_FIELDS = (
    *("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "ignore_eos", "logprobs"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "verify"),
)


def draft_length_option(value: str) -> str:
    """A number of tokens, or auto, as typed."""
    if value != "auto" and not (value.isascii() and value.isdigit()):
        raise typer.BadParameter(f"{value!r} is neither a whole number from 0 on nor auto")
    return value


def _bias(value: str) -> str:
    token, equals, bias = value.partition("=")
    try:
        int(token), float(bias)
    except ValueError:
        equals = ""
    if not equals:
        raise typer.BadParameter(f"{value!r} does not read ID=BIAS (a token id and a number, as in 28=-100)")
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person asked for, as typed; None leaves the choice to the model or the library."""

    model: Annotated[
        str,
        _model("--model", "-m", metavar="MODEL", help="Known name, model folder, GGUF file or hub id."),
    ] = DEFAULT_MODEL
    dtype: Annotated[
        Dtype,
        _model(
            metavar="auto|bf16|fp16|fp32|int8|fp8|native",
            help="Number format of weights and cache (bfloat16, float16 and float32 are understood, too); "
            "int8 (CPU only) and fp8 (GPU only) round the weights: half the memory, faster; "
            "native leaves those of a quantised GGUF file as they are (CPU only): least memory.",
        ),
    ] = "auto"
    device: Annotated[
        str,
        _model("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N."),
    ] = "auto"
    threads: Annotated[
        int | None,
        _model(min=1, metavar="N", help="CPU threads."),
    ] = None
    max_context: Annotated[
        int | None,
        _model(min=1, metavar="N", help="Most tokens of prompt and answer to make room for."),
    ] = None
    gpu_memory: Annotated[
        float,
        _model(min=0.01, max=1, metavar="X", help="Part of the GPU that weights and cache may take."),
    ] = 0.9
    bitwise: Annotated[
        bool | None,
        _model(
            "--bitwise/--no-bitwise",
            help="Round alike in every pass, so that bf16 and fp16 match plain decoding too; "
            "on by default where it is nearly free.",
        ),
    ] = None

    drafter: Annotated[
        str,
        _speculation(
            "--drafter",
            metavar="DRAFTER",
            help="Who proposes tokens: none, ngram, suffix, head[:PATH] (a trained head), model:PATH or auto.",
        ),
    ] = "auto"
    draft_length: Annotated[
        str,
        _speculation(
            parser=draft_length_option,
            metavar="N|auto",
            help="Most tokens drafted per step; auto stops drafting when it does not pay.",
        ),
    ] = "auto"
    verify: Annotated[
        Literal["coupled", "rejection"],
        _speculation(
            metavar="coupled|rejection",
            help="coupled: the very tokens of plain decoding. rejection: the same distribution of texts; "
            "a seed need not replay one.",
        ),
    ] = "coupled"

    max_tokens: Annotated[
        int,
        _sampling(min=1, metavar="N", help="Longest answer."),
    ] = 128
    min_tokens: Annotated[
        int,
        _sampling(min=0, metavar="N", help="Do not end before so many tokens."),
    ] = 0
    temperature: Annotated[
        float | None,
        _sampling(min=0.0, metavar="T", help="0 always takes the likeliest token."),
    ] = None
    top_k: Annotated[
        int | None,
        _sampling(min=0, metavar="K", help="Keep the K likeliest tokens; 0: all."),
    ] = None
    top_p: Annotated[
        float | None,
        _sampling(min=0.0, max=1.0, metavar="P", help="Keep the likeliest tokens up to this probability."),
    ] = None
    min_p: Annotated[
        float | None,
        _sampling(min=0.0, max=1.0, metavar="P", help="Keep tokens at least P times as likely as the first."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _sampling(metavar="X", help="Above 1: discourage every token seen so far, prompt included."),
    ] = None
    frequency_penalty: Annotated[
        float,
        _sampling(metavar="X", help="Taken off a token's logit for each time it was generated."),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        _sampling(metavar="X", help="Taken off a token's logit once it was generated."),
    ] = 0.0
    logit_bias: Annotated[
        list[str],
        _sampling(parser=_bias, metavar="ID=BIAS", help="Add BIAS to token ID's logit (repeatable)."),
    ] = field(default_factory=list)
    seed: Annotated[
        int | None,
        _sampling(metavar="N", help="Fixes the randomness; not given: drawn and reported."),
    ] = None
    stop: Annotated[
        list[str],
        _sampling(metavar="TEXT", help="End right before this text (repeatable)."),
    ] = field(default_factory=list)
    ignore_eos: Annotated[
        bool,
        _sampling("--ignore-eos", help="Go on past the model's end of text."),
    ] = False

    raw: Annotated[
        bool,
        _output("--raw", help="Continue the text as it stands, without the chat template."),
    ] = False
    compare: Annotated[
        bool,
        _output("--compare", help="Also decode plainly, and report both."),
    ] = False
    json: Annotated[
        bool,
        _output("--json", help="Print one JSON object per answer on stdout, and nothing else there."),
    ] = False
    trace: Annotated[
        bool,
        _output("--trace", help="Show every step: what was drafted, what accepted, what the target added."),
    ] = False
    logprobs: Annotated[
        int | None,
        _output(min=0, metavar="N", help="With --json: each token's log-probability and the N likeliest."),
    ] = None

    def sampling_params(self) -> SamplingParams:
        """The sampling half, for the library; refuses what nobody would be told of."""
        if self.logprobs is not None and not self.json:
            raise InvalidRequest("logprobs: they are told as JSON only; give --json, too")
        from outrider.sampling.params import SamplingParams

        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        pairs = (entry.split("=") for entry in self.logit_bias)
        bias = {int(token): float(amount) for token, amount in pairs}
        return SamplingParams(**given, stop=tuple(self.stop), logit_bias=bias)


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `settings` is spread out into one option per field of `Settings`."""
    hints = get_type_hints(Settings, include_extras=True)
    own = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default if each.default is not MISSING else [],
            annotation=hints[each.name],
        )
        for each in fields(Settings)
    ]

    def gathered(**values: Any) -> None:
        chosen = {option.name: values.pop(option.name) for option in options}
        command(settings=Settings(**chosen), **values)

    kept = [parameter for name, parameter in own.parameters.items() if name != "settings"]
    signature = own.replace(parameters=[*kept, *options])
    gathered.__name__, gathered.__doc__ = command.__name__, command.__doc__
    gathered.__signature__ = signature  # type: ignore[attr-defined]
    gathered.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return gathered
