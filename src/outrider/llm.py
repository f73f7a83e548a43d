"""The facade: a model, its drafters and one engine behind `generate`, `stream` and `chat`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from outrider import asked
from outrider.checks import flag, whole
from outrider.control.controller import Controller, FixedLength
from outrider.control.costs import CostTable
from outrider.core.draft import Speculation
from outrider.core.drafter import Drafter
from outrider.core.model import LanguageModel
from outrider.core.request import Chunk, Completion
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import available, build, build_router, check, takes_own_head
from outrider.engine.costs import Costs
from outrider.engine.engine import Engine
from outrider.engine.prepare import prepare
from outrider.engine.request import Request
from outrider.engine.service import Service
from outrider.engine.turns import Turns
from outrider.errors import InvalidRequest
from outrider.models.backend import Placement
from outrider.models.checkpoints.catalog import cache_root
from outrider.models.checkpoints.progress import Progress, SilentProgress
from outrider.models.load import placement
from outrider.parts import TargetParts
from outrider.request_builder import Prompt, RequestBuilder
from outrider.sampling.grammar import Grammars
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    import torch

Message = Mapping[str, Any]
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})


class LLM:
    """A language model that decodes speculatively and exactly.

    >>> with LLM("smollm2-135m") as llm:
    ...     print(llm.generate("The capital of France is", SamplingParams(max_tokens=16))[0].text)

    `model`: a known name (`outrider models list`), a model folder, a GGUF file or a hub id (`org/name`, or
    `org/name@REVISION`). `drafter`: none, ngram, suffix, model:PATH, head[:PATH], auto, or a `Drafter` of your own.
    `also`: further drafters that a request may name (`Speculation.drafter`), or "available" for all that need no path.
    `draft_length`: nodes per draft, or "auto" to stop when it does not pay. None of these changes the text.

    `dtype`: auto, bf16, fp16, fp32, int8, fp8 or native, or as PyTorch names or gives some ("float16", torch.float16).
    `device`: auto, cpu, cuda or cuda:N. `threads`: of the CPU. `bitwise` None: on where it is nearly free.
    `max_batch`: requests that run together; more wait (None: 16, on a GPU 64, on one of 40 GB or more 256).
    `max_context`: tokens of prompt and answer to make room for. `kv_tokens`: the most tokens that running requests may
    have together (None: what the cache has room for). `gpu_memory`: the part of the whole GPU that weights, buffers and
    cache may take together. `remember`: lookup may draft from the answers to earlier requests; not for requests of
    different owners, who could tell by the time it takes. `progress`: told what takes long (None: nobody is). `quiet`:
    a context in which nothing else runs; what passes cost is then measured at once, inside of it, unless an earlier
    process has.

    Any number of threads may use one LLM, and streams may be read by turns: all run together in one engine, and
    everybody gets what they would get alone.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2-135m",
        *,
        drafter: str | Drafter = "auto",
        also: Sequence[str] | Literal["available"] = (),
        draft_length: int | Literal["auto"] = "auto",
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        threads: int | None = None,
        bitwise: bool | None = None,
        max_batch: int | None = None,
        max_context: int | None = None,
        kv_tokens: int | None = None,
        gpu_memory: float = 0.9,
        remember: bool = True,
        progress: Progress | None = None,
        quiet: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        drafter = asked.drafter(drafter)
        others = also if also == "available" else asked.names("also", also)
        for spec in (drafter, *(() if others == "available" else others)):
            if isinstance(spec, str):
                check(spec)
        flag("remember", remember)
        if kv_tokens is not None:
            whole("kv_tokens", kv_tokens, 1)
        progress = asked.progress(progress)
        place = placement(
            device=device,
            dtype=dtype,
            bitwise=bitwise,
            threads=threads,
            max_batch=max_batch,
            max_context=max_context,
            gpu_memory=gpu_memory,
        )
        length = asked.draft_length(draft_length)
        own_head = others == "available" or any(map(takes_own_head, (drafter, *others)))
        parts = TargetParts.load(asked.model_name(model), place, remember, progress, own_head)
        self.tokenizer = parts.target.tokenizer
        self.generation_config = parts.target.generation_config
        self.about = parts.about
        """What runs here, in a line."""
        self._loaded: TargetParts | None = parts
        self._costs = Costs(cache_root() / "costs", parts.facts, quiet)
        router = build_router(drafter, available(parts) if others == "available" else others, parts)
        self.drafter: Drafter = router.default
        """Who drafts for requests that name nobody."""
        self._names: Sequence[str] = router.names
        self._takes_predictions = True
        controller = self._costs.controller(parts.model, router) if length is None else FixedLength(length)
        self._engine: Engine | None = Engine(parts.model, router, controller, kv_tokens=kv_tokens)
        prepare(self._engine, progress)
        self._turns = Turns()
        self._made_of_another = False
        """Whether others use its model, and take turns with it."""
        self._ids = count()
        self._grammars = Grammars(self.tokenizer, parts.vocab_size)

    # -- asking

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: Speculation | Sequence[Speculation] | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> list[Completion]:
        """Complete every prompt (text, or token ids) in one ragged batch; results in the order of the prompts.

        `params` and `speculation`: one for all, or one each. `speculate=False` decodes plainly, as
        `Speculation(max_nodes=0)` does: the same tokens (coupled rule), later. `trace`: keep every step in
        `Completion.trace`. `RequestFailed` where a grammar turns out to be too large on the way; most that are, are
        refused at once (`InvalidRequest`).
        """
        chunks = self.stream(prompts, params, speculation=speculation, speculate=speculate, trace=trace)
        return completions(chunks)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        speculation: Speculation | Sequence[Speculation] | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> Iterator[Chunk]:
        """As `generate`, one `Chunk` per request and step as it happens; `chunk.index` is the prompt's index.

        Closing the iterator early, or losing it (or Ctrl-C), lets go of everything still running. What others ask for
        meanwhile runs in the same batch, and this one's chunks wait to be read.
        """
        requests = self.requests.build_each(prompts, params, speculation=speculation, speculate=speculate, trace=trace)
        return self._turns.read(self._own_engine, requests)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] = NO_VARIABLES,
        speculation: Speculation | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> Completion:
        """Answer a conversation ([{"role": "system", "content": …}, {"role": "user", "content": …}, …]) through the
        model's chat template.

        `tools`: functions the model may call, as OpenAI writes them; what it answers is text in the model's own
        notation (`outrider serve` reads calls out of it). `template_variables`: others that the template knows, such as
        `enable_thinking`. The rest is as for `generate`.
        """
        prompt = self.encode_chat(messages, tools=tools, template_variables=template_variables)
        return self.generate([prompt], params, speculation=speculation, speculate=speculate, trace=trace)[0]

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] = NO_VARIABLES,
        speculation: Speculation | None = None,
        speculate: bool = True,
        trace: bool = False,
    ) -> Iterator[Chunk]:
        """As `chat`, one `Chunk` per step as it happens; the last one has the whole `completion`."""
        prompt = self.encode_chat(messages, tools=tools, template_variables=template_variables)
        return self.stream([prompt], params, speculation=speculation, speculate=speculate, trace=trace)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        """The conversation as the token ids the model is asked to continue; arguments as for `chat`."""
        said, known = asked.messages(messages), None if tools is None else asked.tools(tools)
        prompt = self.tokenizer.apply_chat_template(said, True, known, template_variables)
        if known and prompt == self.tokenizer.apply_chat_template(said, True, None, template_variables):
            raise InvalidRequest("tools: the model's chat template does not know any; tell of them in a system message")
        return prompt

    # -- opening and closing

    def close(self) -> None:
        """End what still runs, also in what was made of this one by `with_drafter`, and let go of the weights. Later
        calls are refused; safe to repeat. What `with_drafter` made only lets go of its own part."""
        if self._engine is None:
            return
        _ = self._own_engine  # not while a service has it
        if not self._made_of_another:
            self._turns.close("the LLM was closed meanwhile")
        self._engine = self._loaded = None
        self.drafter = NoDrafter()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def with_drafter(self, drafter: str | Drafter, controller: Controller | Literal["auto"] = "auto") -> LLM:
        """Another way to decode with the same weights and cache slots: by exactly this drafter, in an engine of its
        own. The two take turns where both are used."""
        drafter = asked.drafter(drafter)
        if isinstance(drafter, str):
            drafter = build(drafter, self._parts)
        auto = controller == "auto"
        decides = self._costs.controller(self.model, drafter) if auto else asked.controller(controller)
        engine = Engine(self.model, drafter, decides)
        prepare(engine, SilentProgress())
        return over_engine(self, engine)

    # -- what runs

    @property
    def engine(self) -> Engine:
        """What runs requests; for those who step it themselves. Leave `generate` alone then."""
        if self._engine is None:
            raise InvalidRequest("this LLM is closed; make another one")
        return self._engine

    @property
    def model(self) -> LanguageModel:
        """The target."""
        return self.engine.model

    @property
    def place(self) -> Placement:
        """Where and how the model runs."""
        return self._parts.place

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names a request may give as `Speculation.drafter`."""
        return (*self._names,) if "none" in self._names else (*self._names, "none")

    @property
    def requests(self) -> RequestBuilder:
        """Makes requests for `engine`."""
        tokens, defaults, predicts = self.tokenizer, self.generation_config, self._takes_predictions
        return RequestBuilder(self.model, tokens, defaults, self._grammars, self.drafters, predicts, self._ids)

    def service(self, *, max_queue: int = 64, buffer: int = 512) -> Service:
        """The engine in a thread of its own, with an asyncio face (`Service`): for servers and `AsyncLLM`. Until it has
        been stopped, this LLM answers through it alone."""

        def probe() -> Request:
            return self.requests.build([0], SamplingParams(max_tokens=1, temperature=0))

        service = Service(self._own_engine, max_queue=max_queue, buffer=buffer, probe=probe)
        self._turns.lend(service)
        return service

    def costs(self) -> CostTable:
        """What passes and drafts cost here, measured now; what later processes begin with. Takes a second or so."""
        survey = self._costs.survey(self.model, self.engine.drafter)
        if survey is None:
            raise InvalidRequest(f"what passes of a {type(self.model).__name__} cost cannot be measured beforehand")
        return survey.whole()

    def finish_costs(self, seconds: float = 0.25) -> None:
        """Measure what is left of that now, for no longer than this, unless somebody is asking for something: for
        programs that end soon, so that the next one knows."""
        with self._turns.spare() as free:
            if free:
                self._costs.finish(seconds)

    @property
    def _parts(self) -> TargetParts:
        if self._loaded is None:
            raise InvalidRequest("this LLM is closed; make another one")
        return self._loaded

    @property
    def _own_engine(self) -> Engine:
        """Unless somebody else has it."""
        engine = self.engine
        self._turns.refuse_if_lent()
        return engine


def over_engine(llm: LLM, engine: Engine) -> LLM:
    """The same tokenizer and defaults over an engine made elsewhere, with its drafter and its model: this one's or
    another of the same vocabulary. For measurements and tests; `LLM` itself offers `with_drafter`."""
    other, same = copy(llm), engine.model is llm.model
    other._engine, other._made_of_another = engine, same
    other.drafter, other._names, other._takes_predictions = engine.drafter, (engine.drafter.name,), False
    if not same:
        other._turns = Turns()
        other._costs = Costs(None, {})  # another model's, and nobody knows which
    return other


def completions(chunks: Iterable[Chunk]) -> list[Completion]:
    """Of a whole stream, in the order of its prompts."""
    done = {chunk.index: chunk.completion for chunk in chunks if chunk.completion is not None}
    return [done[index] for index in sorted(done)]
