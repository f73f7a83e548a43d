"""What steps on a device take, host and device together, learned from each that is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from outrider.control.steps import StepCosts, guessed
from outrider.core.step import StepOutcome, Stepper, StepShape, step_width

_LATELY = 1 / 4
"""What the newcomers of one step count for in the average."""


class DeviceClock:
    """Times the device by what it says, and the host from reading one step to reading the next."""

    def __init__(self, stepper: Stepper, shapes: Sequence[StepShape]) -> None:
        """`shapes`: those that may be asked for."""
        self.elsewhere = 0.0
        """Seconds since the last step that went into other things than steps: prompts, and newcomers."""
        self._newcomers = 0.0
        """What they were in a step that had any, lately."""
        self._stepper = stepper
        self._shapes = shapes
        self._costs: dict[int, StepCosts] = {}
        """By the width of steps."""
        self._read: tuple[StepCosts, StepShape, float] | None = None
        """The step read last, by its costs and shape, and when; None: steps on the host came after it."""
        self._drafted = False
        """Whether it did: the first draft after a plain step also catches up, which is no measure of the others."""

    def seconds(self, lanes: int) -> Mapping[StepShape, float]:
        """Of a step of so many lanes, by shape."""
        costs = self._costs_of(lanes)
        return costs.seconds() if costs else guessed(self._shapes)

    def takes(self, lanes: int, shape: StepShape) -> float:
        """Seconds of one such step, the host's work with it and all; 0 before anything was measured."""
        costs = self._costs_of(lanes)
        return costs.takes(shape) if costs else 0.0

    def idles(self, lanes: int, shape: StepShape) -> bool:
        """Whether the device, with one such step to do, will be done before newcomers are seen to."""
        costs = self._costs_of(lanes)
        return costs is not None and self._newcomers > costs.spare(shape)

    def since_read(self) -> float:
        """Seconds since a step was read, without what went into other things; 0 where something came between."""
        return max(0.0, perf_counter() - self._read[2] - self.elsewhere) if self._read else 0.0

    def waiting(self) -> None:
        """The host has nothing left to do but to read the next step."""
        if self._read is not None:
            costs, shape, since = self._read
            costs.observe_host(shape, max(0.0, perf_counter() - since - self.elsewhere))
        if self.elsewhere:
            self._newcomers += _LATELY * (self.elsewhere - self._newcomers)
            self.elsewhere = 0.0

    def read(self, lanes: int, shape: StepShape, outcome: StepOutcome) -> None:
        """That step is read."""
        self._read = None
        if known := self._costs_of(lanes):
            device = outcome.draft_seconds + outcome.target_seconds
            if device > 0 and (self._drafted or not shape.drafted):
                known.observe(shape, device)
            self._drafted = shape.drafted > 0
            self._read = known, shape, perf_counter()

    def pause(self) -> None:
        """The host does something else before it reads the next step."""
        self._read = None

    def _costs_of(self, lanes: int) -> StepCosts | None:
        """None before anything was measured."""
        width = step_width(lanes)
        if width not in self._costs and (measured := self._stepper.seconds(lanes)):
            self._costs[width] = StepCosts(measured)
        return self._costs.get(width)
