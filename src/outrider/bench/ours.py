"""Our own arms: one model, several ways to draft for it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Literal

from outrider import __version__
from outrider.bench.measured_model import MeasuredModel
from outrider.bench.names import AUTO, ArmName
from outrider.bench.synthetic import SyntheticAcceptance
from outrider.bench.synthetic_engine import synthetic_engine
from outrider.bench.timing import WARM_UP, Sampling, Stopwatch, Timing
from outrider.control.controller import Controller, FixedLength
from outrider.drafters.registry import DRAFTERS
from outrider.errors import DrafterError, InvalidRequest
from outrider.llm import LLM, over_engine
from outrider.sampling.params import SamplingParams

_WARM_PROMPT = "Name three rivers, and say where each of them ends."


class OurArm:
    """Plain decoding, or one drafter at one draft length."""

    def __init__(self, name: ArmName, target: MeasuredModel, synthetic_acceptance: float | None = None) -> None:
        if not name.is_plain and name.method not in (AUTO, *DRAFTERS):
            known = ", ".join(["plain", AUTO, *(each for each in DRAFTERS if each != "none")])
            raise DrafterError(f"arms: there is no drafter {name.method!r} in this version; ours are {known}")
        self.name = name.text
        self._spec = name
        self._acceptance = _acceptance(name, synthetic_acceptance)
        self._target = target
        self._llm: LLM | None = None

    def prepare(self) -> None:
        llm = self._target.load(self._spec.dtype)
        if self._spec.is_plain:
            llm = llm.with_drafter("none", FixedLength(0))  # an engine that never had a drafter
        else:
            llm = llm.with_drafter(self._target.drafter(self._spec, llm), _controller(self._spec.length))
            if self._acceptance is not None:
                llm = over_engine(llm, synthetic_engine(llm.model, llm.drafter, self._acceptance))
        self._llm = llm
        self.run(self._target.encode([{"role": "user", "content": _WARM_PROMPT}]), WARM_UP)

    @property
    def llm(self) -> LLM:
        """This arm as one `LLM`: its engine decodes plainly, or drafts."""
        assert self._llm is not None, "prepare comes first"
        return self._llm

    def run(self, prompt: Sequence[int], sampling: Sampling) -> Timing:
        drafted = 0
        watch = Stopwatch()
        for chunk in self.llm.stream([prompt], sampling_params(sampling)):
            watch.emit(chunk.token_ids)
            drafted += len(chunk.step.draft)
        return watch.timing(drafted)

    def close(self) -> None:
        self._llm = None

    @property
    def pids(self) -> Sequence[int]:
        return ()

    @property
    def versions(self) -> dict[str, str]:
        return {"outrider": __version__, "torch": version("torch")}


def sampling_params(sampling: Sampling) -> SamplingParams:
    """Exactly this; nothing is left to the model's own defaults."""
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=0.0,
        repetition_penalty=1.0,
        seed=sampling.seed,
        ignore_eos=True,
    )


def _acceptance(name: ArmName, mean_length: float | None) -> SyntheticAcceptance | None:
    if mean_length is None or name.is_plain:
        return None
    if not name.length.isdigit():
        raise InvalidRequest(
            f"synthetic acceptance: {name.text!r} must say how many tokens a step drafts, as in suffix:4"
        )
    return SyntheticAcceptance(int(name.length), mean_length)


def _controller(length: str) -> Controller | Literal["auto"]:
    """auto; treeN: a tree of N nodes; N: a chain of N."""
    if length == "auto":
        return "auto"
    if length.startswith("tree"):
        return FixedLength(int(length.removeprefix("tree")))
    return FixedLength(int(length), tree=False)
