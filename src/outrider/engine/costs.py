"""Cost tables kept from one process to the next."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from outrider.control.costs import CostTable
from outrider.control.survey import Survey
from outrider.types import Drafter, HasNetworks, LanguageModel, Measurable


class CostCache:
    """One file per model, drafters and machine in `folder`; what cannot be read or written is measured again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, facts: Mapping[str, object]) -> CostTable | None:
        """The table measured under these very facts."""
        try:
            return CostTable.from_json(self._path(facts).read_text())
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return None

    def save(self, facts: Mapping[str, object], table: CostTable) -> None:
        path = self._path(facts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(f".{os.getpid()}")
            beside.write_text(table.to_json())
            beside.replace(path)
        except OSError:
            return  # a full or read-only disk: next time it is measured again

    def _path(self, facts: Mapping[str, object]) -> Path:
        text = json.dumps(facts, sort_keys=True, default=str)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def paid_networks(drafter: Drafter) -> dict[str, Measurable]:
    """What drafters' passes are made with, as far as it can be measured, by the names in their drafts."""
    networks = drafter.networks if isinstance(drafter, HasNetworks) else {}
    return {name: network for name, network in networks.items() if isinstance(network, Measurable)}


def known_costs(
    model: LanguageModel, drafter: Drafter, cache: CostCache | None, facts: Mapping[str, object]
) -> CostTable | Survey | None:
    """What is known of these costs, or what will find out; None where nothing can."""
    if not isinstance(model, Measurable):
        return None
    networks = paid_networks(drafter)
    facts = {**facts, "drafters": sorted(networks)}
    if cache is None:
        return Survey(model, networks, model.max_context)
    return cache.load(facts) or Survey(model, networks, model.max_context, lambda table: cache.save(facts, table))
