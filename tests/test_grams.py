"""How many Gram matrices a simulation computes and keeps, and sums that are fused with parity."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl.core.client import Gradient
from codedfedl.core.protocol import Ask, Inbox, Info, Scheme, State
from codedfedl.core.waiting import Everyone
from codedfedl.learning.least_squares import Quadratic
from codedfedl.schemes.coded import Coded, CodedState
from codedfedl.schemes.tifl import TiFL
from codedfedl.schemes.uncoded import Uncoded
from codedfedl.simulation.evaluate import Batch, Evaluator, Query
from codedfedl.simulation.grams import LEAST_HELD, Grams
from tests.virtual import play, simulation_of

LONG: dict[str, Any] = {"training": {"epochs": 60, "step": 2.0, "ridge": 9e-6, "target": 0.5}}


@dataclass(frozen=True)
class Sampled(Scheme):
    """A random number of points of each client, drawn afresh in every round."""

    info: ClassVar[Info] = Info("sampled")

    def ask(self, state: State) -> Ask | None:
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        drawn = np.random.default_rng(state.round).integers(0, state.task.points[batch] + 1)
        return Ask(Gradient(batch), Everyone(), drawn)

    def receive(self, state: State, inbox: Inbox) -> State:
        return state.descended(inbox.total(), inbox.points)


@dataclass(frozen=True)
class Few(Sampled):
    """One client in turn: the same loads come back after many others."""

    info: ClassVar[Info] = Info("few")
    distinct: int = 40

    def ask(self, state: State) -> Ask | None:
        if state.finished:
            return None
        batch = state.task.batch(state.round)
        loads = state.task.points[batch] - state.round % self.distinct % 5
        loads[0] -= state.round % self.distinct
        return Ask(Gradient(batch), Everyone(), loads)


class TestGrams:
    def test_loads_that_never_come_back_have_none(self) -> None:
        simulation = simulation_of({"sampled": Sampled()}, **LONG)
        assert len(play(simulation)["sampled"].rounds) == 120
        grams = simulation.evaluator.grams
        assert (grams.computed, len(grams)) == (0, 0)

    def test_nor_those_that_come_back_after_too_many_others(self) -> None:
        simulation = simulation_of({"few": Few()}, **LONG)
        play(simulation)
        assert simulation.evaluator.grams.computed == 0

    def test_steady_loads_have_one_for_each_mini_batch(self) -> None:
        simulation = simulation_of({"coded": Coded(), "more": Coded(0.3), "all": Uncoded()}, **LONG)
        play(simulation)
        assert simulation.evaluator.grams.computed == 2 * 2  # all points: kept with the mini-batch
        assert len(simulation.evaluator.grams) == 2 * 2

    def test_tiers_share_theirs(self) -> None:
        simulation = simulation_of({"one": TiFL(3), "other": TiFL(3)}, **LONG)
        play(simulation)
        assert simulation.evaluator.grams.computed == 3 * 2

    @pytest.mark.parametrize("settings", [1, 50])
    def test_the_least_recently_used_make_room(self, settings: int) -> None:
        rng = np.random.default_rng(0)
        batches = [
            Batch(rng.normal(size=(400, 3)), rng.normal(size=(400, 1)), np.array([0, 200, 400]))
            for _ in range(2)
        ]
        grams = Grams(batches, settings)
        most = max(LEAST_HELD, 2 * settings)
        first = np.array([7, 200])
        for k in range(150):
            grams.of(0, np.array([k, 100]), None)
            grams.of(1, first, None)
        assert len(grams) == most
        assert grams.computed == 151
        grams.of(0, np.array([0, 100]), None)
        assert grams.computed == 152


def _batch(rng: np.random.Generator) -> Batch:
    return Batch(rng.normal(size=(12, 5)), rng.normal(size=(12, 2)), np.array([0, 4, 9, 12]))


@given(
    seed=st.integers(0, 2**32 - 1), steady=st.booleans(), adds_it=st.booleans(), asked=st.booleans()
)
def test_a_hint_changes_no_result(seed: int, steady: bool, adds_it: bool, asked: bool) -> None:
    """Whatever a scheme adds, at whichever model, and whichever of the sums it reads."""
    rng = np.random.default_rng(seed)
    evaluator = Evaluator([_batch(rng)])
    hint, other = (Quadratic.of(rng.normal(size=(6, 5)), rng.normal(size=(6, 2))) for _ in "ab")
    model, later = rng.normal(size=(2, 5, 2))
    loads = rng.integers(0, [5, 6, 4])
    plain = Query(0, loads, (rng.random(3) < 0.6) & (loads > 0), model, steady=steady)
    unfused, fused = evaluator.inboxes([plain, replace(plain, adds=hint)])
    parts = (hint if adds_it else other), (model if asked else later)
    np.testing.assert_allclose(fused.plus(*parts), unfused.plus(*parts), atol=1e-10)
    np.testing.assert_allclose(fused.total(), unfused.total(), atol=1e-10)
    assert fused.total("model") == unfused.total("model") == 0.0
    assert fused.sums.keys() == unfused.sums.keys()
    assert fused.points == unfused.points


@dataclass(frozen=True)
class AtOldModel(Coded):
    """It adds the parity's gradient at the first model, wherever the clients' is."""

    info: ClassVar[Info] = replace(Coded.info, name="at-old-model")
    hints: bool = True

    def ask(self, state: CodedState) -> Ask | None:
        ask = super().ask(state)
        return ask if self.hints or ask is None else replace(ask, adds=None)

    def receive(self, state: CodedState, inbox: Inbox) -> CodedState:
        if not state.parity:
            return super().receive(state, inbox)
        batch = state.task.batch(state.round)
        total = inbox.plus(state.parity[batch], 0 * state.model)
        return state.descended(total, float(state.task.points[batch].sum()))


@pytest.mark.parametrize("scheme", [AtOldModel, Coded])
def test_runs_with_and_without_hints_agree(scheme: type[Coded]) -> None:
    without = AtOldModel(hints=False) if scheme is AtOldModel else Unhinted()
    settings = play(simulation_of({"fused": scheme(), "apart": without}, **LONG))
    fused, apart = (np.asarray(settings[name].state.model) for name in ("fused", "apart"))
    assert np.abs(apart).max() > 0.01
    np.testing.assert_allclose(fused, apart, atol=2e-5 * float(np.abs(apart).max()))


@dataclass(frozen=True)
class Unhinted(Coded):
    """The paper's scheme, without the hint."""

    info: ClassVar[Info] = replace(Coded.info, name="unhinted")

    def ask(self, state: CodedState) -> Ask | None:
        ask = super().ask(state)
        return None if ask is None else replace(ask, adds=None)
