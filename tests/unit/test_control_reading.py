"""For which prompts a head reads: what that costs all, against what it adds to the drafts of one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from control_world import Drafts, Running, World, flat

from outrider.control.acceptance import Acceptance
from outrider.control.auto import AutoLength
from outrider.control.costs import ROWS, CostTable, DraftCost
from outrider.control.pace import LONG_PAUSE
from outrider.control.paid import PaidDrafters
from outrider.control.paid_state import PaidState
from outrider.control.prices import Prices
from outrider.core.draft import Budget, Draft, Speculation
from outrider.core.drafter import VerifiedDraft
from outrider.core.request import RequestView


def test_a_drafter_may_pay_for_one_request_and_not_for_many() -> None:
    """Rows cost nothing up to 8, and then as much as a first one."""
    line = [1.0 if rows <= 8 else rows / 8 for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.05)})
    controller = AutoLength(table=table)
    reads = [controller.pays([Running(running, prompt_length=1)], running)[0] for running in (1, 2, 4, 12, 24)]
    assert reads == [True, True, True, False, False]


def test_prompts_are_read_only_for_answers_that_bring_it_in() -> None:
    """Reading a token takes a hundredth of a pass, and drafts save half of one in a step."""
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.1, 0.02 + 32 * 0.01)})
    paid = PaidDrafters(table, 16, 64, Acceptance(), {})
    assert [paid.newcomers.pays(1.0, 1, prompt) for prompt in (100, 250, 30_000)] == [True, True, False]
    for _ in range(100):
        paid.newcomers.ended(8)
    assert [paid.newcomers.pays(1.0, 1, prompt) for prompt in (15, 250, 30_000)] == [True, False, False]


def test_what_is_there_of_a_prompt_is_not_read_again() -> None:
    """The next turn of a long conversation: only what is new of it is run, and read."""
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.1, 0.02 + 32 * 0.01)})
    controller = AutoLength(table=table)
    assert controller.pays([Running(0, prompt_length=30_000)], 1) == [False]
    assert controller.pays([Running(1, prompt_length=30_000, reused=29_900)], 1) == [True]


def test_now_and_then_a_prompt_is_read_all_the_same() -> None:
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.9)})
    for together in (1, 16):
        controller, ids, read = AutoLength(table=table), count(), 0
        for _ in range(320 // together):
            newcomers = [Running(next(ids), prompt_length=100) for _ in range(together)]
            decided = controller.pays(newcomers, 16)
            assert sum(decided) <= 1, "of those that come together one"
            read += sum(decided)
            for each in newcomers:
                controller.forget(each)
        assert 8 <= read <= 13


def test_who_is_read_all_the_same_has_a_use_for_it() -> None:
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.9)})
    others = Speculation(max_nodes=0), Speculation(drafter="ngram"), Speculation()
    controller, read = AutoLength(table=table), [0, 0, 0]
    for number in range(0, 300, 3):
        newcomers = [Running(number + i, prompt_length=100, speculation=s) for i, s in enumerate(others)]
        for i, decided in enumerate(controller.pays(newcomers, 16)):
            read[i] += decided
    assert read[:2] == [0, 0]
    assert read[2] >= 5


@pytest.mark.parametrize(("unread", "reads"), [(0.8, False), (0.0, True)])
def test_a_prompt_is_read_for_what_that_adds(unread: float, reads: bool) -> None:
    """Not where drafts are as good without. Sixteen requests."""
    line = [1.0 + 0.005 * rows for rows in ROWS]
    cost = DraftCost(0.02, 0.05, resume=0.34, row=0.002)
    paid = PaidDrafters(CostTable(ROWS, (64, 1024), (line, line), drafting={"head": cost}), 4, 64, Acceptance(), {})
    for read, chance in ((True, 0.8), (False, unread)) * 50:
        state = PaidState(read, drafter="head", levels=1, passes=1, rows=1)
        paid.rate(state, Draft([7], [-1], [chance], "head"), [chance], [0])
    assert paid.newcomers.pays(1.0, 16, 100) == reads


def stairs() -> CostTable:
    """Rows cost nothing up to 8, and then as much as a first one."""
    line = [1.0 if rows <= 8 else rows / 8 for rows in ROWS]
    return CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.05)})


def test_prompts_that_wait_count_as_much_as_what_decodes() -> None:
    """The first of twelve requests has its first tokens, alone in its steps, when the others' prompts are run. They
    will share theirs."""
    controller = AutoLength(table=stairs())
    World(flat).run(controller, 4)
    assert controller.pays([Running(1, prompt_length=100)], 12) == [False]
    assert controller.pays([Running(2, prompt_length=100)], 1) == [True]


def test_it_is_decided_once_for_all_pieces_of_a_prompt() -> None:
    """Half a prompt read costs half, and is of little use."""
    controller = AutoLength(table=stairs())
    read, unread = Running(1, prompt_length=100), Running(2, prompt_length=100)
    assert controller.pays([read], 1) == [True]
    assert controller.pays([unread], 24) == [False]
    assert [controller.pays([read], 24), controller.pays([unread], 1)] == [[True], [False]]
    assert controller.pays([read, unread], 24) == [True, False]


def test_beside_one_that_is_read_a_newcomer_is_not() -> None:
    """Each prompt is read for itself: else one read to find out would have all read that come while it is."""
    controller = AutoLength(table=stairs())
    read, beside = Running(1, prompt_length=100), Running(2, prompt_length=100)
    assert controller.pays([read], 1) == [True]
    assert controller.pays([read, beside], 24) == [True, False]
    assert controller.pays([beside], 24) == [False]


def test_no_prompt_is_read_where_a_step_has_no_row_for_a_draft() -> None:
    line = [1.0 + 0.001 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"head": DraftCost(0.02, 0.05)})
    paid = PaidDrafters(table, 16, 64, Acceptance(), {})
    assert paid.newcomers.pays(1.0, 8, 100)
    assert not any(paid.newcomers.pays(1.0, 64, 100) for _ in range(50))


def test_pieces_of_prompts_are_not_what_the_next_is_read_all_the_same_after() -> None:
    controller = AutoLength(table=stairs())
    prompt = Running(1, prompt_length=100)
    assert not any(controller.pays([prompt], 24)[0] for _ in range(100))


def test_a_prompt_that_ends_without_an_answer_says_nothing_of_answers() -> None:
    controller = AutoLength(table=stairs())
    for i in range(200):
        asked = Running(i, tokens=[0] * 100, prompt_length=100)
        controller.pays([asked], 1)
        controller.forget(asked)
    assert controller._paid is not None
    assert controller._paid.newcomers.answer == pytest.approx(128)
    assert controller.held == 0


def test_before_anything_is_known_drafts_bring_something_without_reading_too() -> None:
    """Reading takes half of what drafts bring, which without is more than half: it is not worth it."""
    line = [1.0 + 0.01 * rows for rows in ROWS]
    cost = DraftCost(0.02, 0.1, 0.02 + 32 * 0.01)
    paid = PaidDrafters(CostTable(ROWS, (64, 1024), (line, line), drafting={"head": cost}), 16, 64, Acceptance(), {})
    whole = next(prompt for prompt in range(100, 10**5, 100) if not paid.newcomers.pays(1.0, 1, prompt))
    assert whole * paid.costs["head"].reading < 0.6 * paid.newcomers.saves("head", 1.0, 1)


def test_wide_drafts_are_not_taken_to_be_short() -> None:
    """Where a prompt was read several nodes a level are worth their rows, elsewhere one is; and right less often."""
    line = [1.0 + 0.005 * rows for rows in ROWS]
    cost = DraftCost(0.02, 0.02, 0.02 + 32 * 0.001)
    paid = PaidDrafters(CostTable(ROWS, (64, 1024), (line, line), drafting={"head": cost}), 16, 64, Acceptance(), {})
    wide = Draft([1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, 2, 2], [0.6, 0.1, 0.36, 0.06, 0.2, 0.03], "head")
    narrow = Draft([1, 3, 5], [-1, 0, 1], [0.5, 0.25, 0.12], "head")
    for read, draft in ((True, wide), (False, narrow)) * 50:
        state = PaidState(read, drafter="head", levels=3, passes=3, rows=3)
        paid.rate(state, draft, draft.confidence, range(len(draft)))
    assert paid.newcomers.pays(1.0, 1, 50)


def test_what_drafts_gain_does_not_make_them_worth_less() -> None:
    """A prompt is read for what a token costs without the drafts it is read for; what is looked up anyhow counts."""
    asked, finds = World(flat, per_level=0.05), World(flat, free=True)
    paid, looked_up = asked.auto(), finds.auto()
    asked.run(paid, 200)
    finds.run(looked_up, 200)
    assert paid._prices.efficiency < 0.6
    assert paid._prices.unpaid == 1.0
    assert looked_up._prices.efficiency < 0.6
    assert looked_up._prices.unpaid < 0.6


def test_what_is_learned_of_drafts_holds_without_reading_too() -> None:
    """Drafts are right less often than was hoped, with prompts read. Those without have not been seen: they are not
    taken to be better for it."""
    line = [1.0 + 0.01 * rows for rows in ROWS]
    cost = DraftCost(0.02, 0.05)
    paid = PaidDrafters(CostTable(ROWS, (64, 1024), (line, line), drafting={"head": cost}), 4, 64, Acceptance(), {})
    assert paid.newcomers.pays(1.0, 1, 10)
    for _ in range(100):
        paid.rate(
            PaidState(True, drafter="head", levels=1, passes=1, rows=1), Draft([7], [-1], [0.4], "head"), [0.4], [0]
        )
    assert paid.newcomers.pays(1.0, 1, 10)


def test_what_a_draft_model_brings_is_known_whatever_was_decided_of_prompts() -> None:
    """It runs them by itself, and was once asked whether that pays: nothing it drafts is without its prompt."""
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"model": DraftCost(0.02, 0.1, 0.02 + 32 * 0.02)})
    paid = PaidDrafters(table, 4, 64, Acceptance(), {})
    before = paid.newcomers.levels("model", True).weight
    for _ in range(20):
        state = PaidState(False, drafter="model", levels=1, passes=1, rows=1, invests=False)
        paid.rate(state, Draft([7], [-1], [0.9], "model"), [0.9], [0])
    assert paid.newcomers.levels("model", True).weight == before + 20


def test_what_is_looked_up_is_worth_no_more_rows_than_a_step_has() -> None:
    line = [1.0 + 0.01 * rows for rows in ROWS]
    prices = Prices(8, CostTable(ROWS, (64, 1024), (line, line)), None)
    prices.step(4, 64)
    for _ in range(300):
        prices.found(4, [[0.9] * 16] * 4)
    assert prices.unpaid == pytest.approx((4 + 4 * 0.01 / (1.04 / 4)) / (4 + 4 * 0.9), rel=0.02)


def test_a_prompt_that_is_not_read_leaves_something_to_catch_up_with() -> None:
    state = PaidState()
    state.decide(False)
    assert state.behind == LONG_PAUSE
    state.end_step()
    assert state.behind == LONG_PAUSE
    state.drafter = "head"
    state.end_step()
    assert state.behind == 0


class Lacking(Drafts):
    """One whose cache lacks a prompt until it has drafted."""

    def __init__(self, missing: int) -> None:
        super().__init__(World(), 0, 1)
        self.missing = missing

    def lacks(self, request: RequestView) -> int:
        return self.missing

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[Budget]) -> list[Draft]:
        if any(budget.nodes for budget in budgets):
            self.missing = 1
        return super().propose(requests, budgets)


@pytest.mark.parametrize(("missing", "drafts"), [(20, True), (100, True), (30_000, False)])
def test_a_draft_model_runs_a_prompt_only_where_that_pays(missing: int, drafts: bool) -> None:
    """As one is read for a head: a token of it takes a hundredth of a pass."""
    line = [1.0 + 0.01 * rows for rows in ROWS]
    table = CostTable(ROWS, (64, 1024), (line, line), drafting={"world": DraftCost(0.02, 0.1, 0.02 + 32 * 0.01)})
    controller, drafter, request = AutoLength(table=table), Lacking(missing), Running(0)
    for _ in range(100):
        (draft,) = controller.draft(drafter, [request], True, [1000])
        took = 0.02 + 0.1 * drafter.levels if len(draft) else 0.0
        verified = VerifiedDraft(request, draft, tuple(range(len(draft))), (*[7] * len(draft), 7))
        controller.observe([verified], 1 + len(draft), took, 1.0 + 0.01 * len(draft))
    assert (drafter.missing == 1) == drafts


@pytest.mark.parametrize("missing", [300, 400])
def test_a_draft_model_that_is_good_is_asked_for_long_prompts_too(missing: int) -> None:
    """Running those takes more than finding out may; and what it takes, once an answer, is no price of levels."""
    line, reading = [1.0 + 0.01 * rows for rows in ROWS], 0.02
    cost = DraftCost(0.005, 0.1, 0.005 + 32 * reading)
    controller = AutoLength(table=CostTable(ROWS, (64, 1024), (line, line), drafting={"world": cost}))
    spent, steps = 0.0, 0
    for number in range(60):
        drafter, request = Lacking(missing), Running(number, [0] * missing, prompt_length=missing)
        controller.pays([request], 1)
        while steps < 128 * (number + 1):
            before = drafter.missing
            drafter.levels = 0
            (draft,) = controller.draft(drafter, [request], True, [1000])
            took = 0.005 + 0.1 * drafter.levels + (before - drafter.missing) * reading if drafter.levels else 0.0
            assert controller._paid is not None
            controller._paid.seconds = took
            verified = VerifiedDraft(request, draft, tuple(range(len(draft))), (*[7] * len(draft), 8))
            controller.observe([verified], 1 + len(draft), took, 1.0 + 0.01 * len(draft))
            if number >= 30:
                spent += took + 1.0 + 0.01 * len(draft)
            steps += 1 + len(draft)
            request.tokens.extend(verified.tokens)
        controller.forget(request)
    assert (128 * 30) / spent > 1.2
