"""What the controller believes, as people see it: in traces, and on /metrics."""

from __future__ import annotations

from typing import Any

from tiny_engine import TinyParts, finish, request, text
from tiny_models import decoder_of, reference

from outrider.control.auto import AutoLength
from outrider.control.belief import Belief
from outrider.control.controller import Controller, FixedLength
from outrider.control.costs import ROWS, CostTable
from outrider.drafters.registry import build
from outrider.engine.engine import Engine
from outrider.engine.request_state import Load
from outrider.server.metrics import Metrics


def test_every_reason_is_a_sentence_of_its_own() -> None:
    dear = Belief(row=0.31, best=0.25, ledger=1.0)
    assert dear.why == (
        "nothing drafted: a row costs 0.31 of a pass here and a token is worth 1.00; "
        "the likeliest draft is right with 0.25"
    )
    reasons = [
        Belief(known=False),
        Belief(row=0.3),
        Belief(row=0.3, best=0.9, ledger=0.1),
        Belief(row=0.3, best=0.9, ledger=1.0, drafted=2),
    ]
    assert len({each.why for each in [dear, *reasons]}) == 5


def reasons(controller: Controller) -> list[str]:
    source: Any = reference("llama")
    model = decoder_of(source, "native")
    one = request(0, text(30, 1) * 2, limit=20)
    finish(Engine(model, build("suffix", TinyParts(source, model)), controller), one)
    return [step.why for step in one.trace]


def test_a_trace_says_why() -> None:
    flat, dear = ([PASS * (1 + row * (r - 1)) for r in ROWS] for PASS, row in ((1e-4, 0.0), (1e-4, 3.0)))
    cheap = reasons(AutoLength(table=CostTable(ROWS, (0, 1), (flat, flat))))
    assert any("drafted: a row costs 0.00 of a pass here" in why for why in cheap)
    costly = reasons(AutoLength(table=CostTable(ROWS, (0, 1), (dear, dear))))
    assert all(why.startswith("nothing") for why in costly[1:])
    assert set(reasons(FixedLength(2))) == {""}, "nobody decides anything"


def test_passes_are_told_by_their_rows() -> None:
    line = [1e-4 * (1 + 0.5 * (r - 1)) for r in ROWS]
    controller = AutoLength(table=CostTable(ROWS, (0, 1), (line, line)))
    assert controller.belief.passes == {}, "nothing was computed yet"
    reasons(controller)
    passes = controller.belief.passes
    assert tuple(passes) == ROWS
    assert passes[1] == 1
    assert sorted(passes.values()) == list(passes.values())
    assert passes[32] > 4


def test_metrics_show_what_decisions_rest_on() -> None:
    rates = {"suffix": 0.75, "suffix&head": 1.0}
    belief = Belief(True, True, 0.25, 0.5, {"head": 0.125}, rates, 0.9, 3.5, 4, {1: 1.0, 16: 1.5})
    page = Metrics(lambda: {"m": Load(budgets=(4,), belief=belief)}).page(admin=False).decode()
    for line in (
        'outrider:controller_costs_known{model_name="m"} 1.0',
        'outrider:controller_costs_measured{model_name="m"} 1.0',
        'outrider:controller_row_cost{model_name="m"} 0.25',
        'outrider:controller_token_cost{model_name="m"} 0.5',
        'outrider:controller_level_cost{drafter="head",model_name="m"} 0.125',
        'outrider:controller_acceptance{drafter="suffix",model_name="m"} 0.75',
        'outrider:controller_pass_cost{model_name="m",rows="16"} 1.5',
        'outrider:controller_ledger_passes{model_name="m"} 3.5',
        'outrider:controller_budget_nodes{model_name="m"} 4.0',
    ):
        assert line in page.splitlines(), line
    assert "controller_row_cost" not in Metrics(lambda: {"m": Load()}).page(admin=False).decode()
