"""Writes text in bulk: thousands of sequences sampled from a target at once, for a drafter to learn from.

A conveyor. Every lane holds one sequence, and one uniform step takes all lanes one token further: the prompt's next
token while there is one, else a sample. So there is no prefill of its own, a lane that ends is loaded with the next
prompt, and the whole step has one shape and is recorded once. The host looks at the lanes every few steps, and at the
state before the steps under way, so that a GPU never waits for it.

Nothing here is speculative or bit-exact against the engine: it is the same model at the same precision, in other sums.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from outrider.errors import TrainingError
from outrider.models.architecture import USUAL, Architecture
from outrider.models.cuda.graphs import Graphs
from outrider.models.memory import lazy_zeros
from outrider.models.weights import DecoderWeights, LayerWeights
from outrider.train.jobs import Job, Written
from outrider.train.lanes import Snapshot, WriterLanes
from outrider.train.operations import Operations, TorchOperations

Kernels = Callable[[Architecture, Tensor, WriterLanes], Operations]


class Writer:
    """Samples `architecture` with `weights` (bf16 or fp16 on a GPU). What a job's sequence becomes does not depend on
    its lane or its company, up to the rounding of sums."""

    def __init__(
        self,
        architecture: Architecture,
        weights: DecoderWeights[LayerWeights],
        eos_ids: Sequence[int],
        *,
        lanes: int,
        context: int,
        seed: int,
        interval: int | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """`interval`: steps between two looks at the lanes. `kernels`: None for those of the weights' device."""
        check(architecture, context)
        a, device = architecture, weights.embedding.device
        on_gpu = device.type == "cuda"
        self.context = context
        self.lanes = lanes
        self._a, self._weights = a, weights
        self._lanes = WriterLanes(lanes, context, eos_ids, seed, device)
        # Zeros, not empty: a masked value is multiplied by zero, and zero times a stray NaN is not zero.
        shape = (len(a.layers), 2, lanes, a.kv_heads, context, a.head_dim)
        cache = lazy_zeros(shape, weights.embedding.dtype, device)
        self._do = (kernels or (_gpu_kernels() if on_gpu else TorchOperations))(a, cache, self._lanes)
        self._graphs = Graphs(device) if self._do.recordable else None
        self._interval = interval or (8 if on_gpu else 1)
        self._lag = 1 if on_gpu else 0
        """Snapshots left unread while the next steps run."""
        self.steps = 0
        """Steps taken so far, of `lanes` tokens each."""

    def write(self, jobs: Iterator[Job | None]) -> Iterator[Written]:
        """See `BulkWriter`."""
        with torch.inference_mode():
            self._lanes.clear()
        self._running: dict[int, tuple[int, Job]] = {}  # by lane: the round it was loaded in, and what
        free = list(range(self.lanes))[::-1]
        unread: deque[tuple[int, Snapshot]] = deque()
        round_ = 0
        while True:
            loads = []
            while free and (job := next(jobs, None)) is not None:
                loads.append((free.pop(), self._checked(job)))
            self._running.update((lane, (round_, job)) for lane, job in loads)
            if not self._running:
                return
            with torch.inference_mode():
                self._lanes.load(loads)
                for _ in range(self._interval):
                    if self._graphs is None:
                        self._step()
                    else:
                        self._graphs.run(("step",), self._step)
                unread.append((round_, self._lanes.snapshot()))
            self.steps += self._interval
            round_ += 1
            while len(unread) > self._lag:
                for lane, written in self._ended(*unread.popleft()):
                    free.append(lane)
                    yield written

    def _checked(self, job: Job) -> Job:
        if not 0 < len(job.prompt) < self.context or job.max_new < 1:
            raise TrainingError(
                f"prompt {job.number} ({job.tag}) has {len(job.prompt)} tokens and asks for {job.max_new} more; "
                f"it must have 1 to {self.context - 1} and ask for at least 1: leave it out, or raise the context."
            )
        return job

    def _ended(self, round_: int, snapshot: Snapshot) -> list[tuple[int, Written]]:
        """The sequences that a snapshot shows as ended, out of those that were running in its round."""
        tokens, ended, broken = snapshot.read()
        if broken:
            raise TrainingError("the target's logits are not finite numbers; check its weights, or use another dtype.")
        done = []
        for lane in ended.nonzero()[0].tolist():
            since, job = self._running.get(lane, (round_ + 1, None))
            if since > round_ or job is None:
                continue
            del self._running[lane]
            length = int(ended[lane])
            text = tokens[lane, : abs(length)].copy()
            done.append((lane, Written(text, len(job.prompt), length > 0, job.tag, job.number, job.temperature)))
        return done

    def _step(self) -> None:
        """One token for every lane."""
        w, lanes, do = self._weights, self._lanes, self._do
        x = w.embedding[lanes.current()]  # [lanes, hidden]
        if self._a.embed_scale != 1.0:
            x = x * torch.tensor(self._a.embed_scale, dtype=x.dtype)
        norms = [*(layer.attention_norm for layer in w.layers[1:]), w.norm]  # what follows each layer
        y = do.norm(x, w.layers[0].attention_norm)
        for i, (layer, norm) in enumerate(zip(w.layers, norms, strict=True)):
            heads = do.attend(i, layer, _linear(y, layer.qkv, layer.qkv_bias))
            y = do.add_norm(x, _linear(heads, layer.o, layer.o_bias), layer.mlp_norm)
            active = do.gate(_linear(y, layer.gate_up, layer.gate_up_bias))
            y = do.add_norm(x, _linear(active, layer.down, layer.down_bias), norm)
        lanes.advance(*do.choose(_logits(y, w.head)))


def check(a: Architecture, context: int) -> None:
    """Refuse what the writer cannot run."""
    if unknown := a.lacking(USUAL):
        raise TrainingError(f"sampling in bulk does not know {a.family} models: they have {unknown}.")
    if not 2 <= context <= a.max_context:
        raise TrainingError(
            f"the context must be 2 to {a.max_context} tokens, the most this model takes, not {context}."
        )


def fitting_lanes(a: Architecture, dtype: torch.dtype, device: torch.device, *, context: int, most: int) -> int:
    """As many lanes as the memory has room for, a fifth of it left free, at most `most`; whole tiles of a product."""
    if device.type != "cuda":
        return most
    cache = 2 * len(a.layers) * a.kv_width * context * dtype.itemsize
    passing = 3 * 4 * a.vocab_size + 8 * dtype.itemsize * (a.hidden + a.mlp + a.q_width) + 4 * context
    lanes = min(most, int(0.8 * torch.cuda.mem_get_info(device)[0] / (cache + passing)))
    if lanes < 1:
        raise TrainingError(f"the GPU has no room to sample even one sequence of {context} tokens; free some memory.")
    return lanes if lanes < 64 else lanes // 64 * 64


def _gpu_kernels() -> Kernels:
    from outrider.train.triton_operations import TritonOperations  # needs Triton, which is not everywhere

    return TritonOperations


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear(x, weight, None if bias is None else bias.to(x.dtype))


def _logits(x: Tensor, head: Tensor) -> Tensor:
    """fp32 [lanes, vocab]: bf16 logits would tie at one position in sixty."""
    if x.device.type == "cuda" and x.dtype != torch.float32:
        return torch.mm(x, head.t(), out_dtype=torch.float32)
    return linear(x, head).float()
