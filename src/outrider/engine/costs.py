"""Cost tables: kept from one process to the next, measured where there is none."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from weakref import WeakSet

from outrider.control.auto import AutoLength
from outrider.control.costs import CostTable
from outrider.control.survey import Survey, contexts
from outrider.control.trees import TREES
from outrider.core.drafter import Drafter
from outrider.core.model import CachedNetwork, LanguageModel

_MEASURED = 6
"""How tables are measured, by number: those of other ways are not believed."""


class Costs:
    """Of one model in one place (`facts`: all that its costs depend on), with any drafters: a file each in `folder`.
    What cannot be read is measured again, and what cannot be written next time."""

    def __init__(
        self,
        folder: Path | None,
        facts: Mapping[str, object],
        quiet: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        """`folder` None: nothing is kept. `quiet`: a context in which nothing else runs."""
        self._folder = folder
        self._facts = facts
        self._quiet = quiet
        self._surveys = WeakSet[Survey]()
        """Those under way: of controllers that are still there."""

    def controller(self, model: LanguageModel, drafter: Drafter) -> AutoLength:
        """One that knows what passes cost here, or finds out: at once, where it is quiet, else between the first
        steps."""
        table = self.load(model, drafter)
        survey = None if table else self.survey(model, drafter)
        if survey is not None and self._quiet is not None:
            with self._quiet():
                table, survey = survey.whole(), None
        if survey is not None:
            self._surveys.add(survey)
        return AutoLength(table=table, survey=survey, acceptance=drafter.acceptance, trees=TREES)

    def finish(self, seconds: float) -> None:
        """Nobody waits at the moment: measure what is left, for so long."""
        until = perf_counter() + seconds
        for survey in list(self._surveys):
            survey.finish(until - perf_counter())

    def load(self, model: LanguageModel, drafter: Drafter) -> CostTable | None:
        """What an earlier process has measured."""
        path = self._path(model, drafter)
        if path is None or not model.measurable:
            return None
        try:
            return CostTable.from_json(path.read_text())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def survey(self, model: LanguageModel, drafter: Drafter) -> Survey | None:
        """What will find out, and keep it; None where nothing can be measured."""
        if not model.measurable:
            return None
        return Survey(model, _networks(drafter), model.max_context, partial(self.save, model, drafter))

    def save(self, model: LanguageModel, drafter: Drafter, table: CostTable) -> None:
        """For later processes."""
        path = self._path(model, drafter)
        if path is None:
            return
        beside = path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a full or read-only disk
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                beside.write_text(table.to_json())
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)

    def _path(self, model: LanguageModel, drafter: Drafter) -> Path | None:
        if self._folder is None:
            return None
        drafters = {name: network.cost_key for name, network in _networks(drafter).items()}
        measured = {"measured": _MEASURED, "contexts": contexts(model.max_context)}
        facts = {**self._facts, "drafters": drafters, **measured}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
        return self._folder / f"{digest.hexdigest()[:32]}.json"


def _networks(drafter: Drafter) -> dict[str, CachedNetwork]:
    """What the drafter's passes are made with, as far as it can be measured, by the names in its drafts."""
    return {name: network for name, network in drafter.networks.items() if network.measurable}
