"""Nodes that falsify their answers, and know everything: the rule, the parity and the others.

They lie together, in the direction that they choose, by as much as the judge of the real server
lets pass: they ask a copy of it.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl.data import load_dataset
from codedfedl.data.partitions import partition as deal_rows
from codedfedl.data.shards import read_shard
from codedfedl.errors import InputError
from codedfedl.federate.deploy.local import node_name
from codedfedl.federate.server.evidence import Expected, Measured
from codedfedl.federate.server.rounds import Federation
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered, Arrays
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import changed
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal
from tests.loopback import Loopback, Script, experiment_of, named, transport_of

LIARS = (3, 7)
_HIDDEN = 0.15  # a cosine that is let pass
UNCODED = {"name": "uncoded"}
CODED = {"name": "coded", "redundancy": 0.2}
NEWTON = {"name": "coded-newton", "setup_deadline": 2.0, "mixing": 10}

Lie = Callable[["Lying", int, Expected, Any, Any, int], Any]
"""What a gradient becomes: transport, client, what is expected, model, gradient, round."""


class Lying(Loopback):
    """Ten nodes, of which two lie in their gradients."""

    lie: Lie
    federation: Any = None
    work: Any = None
    rounds = 0

    def ask(self, kind: str, questions: Any, *rest: Any, **more: Any) -> dict[int, int]:
        self.questions = questions
        return super().ask(kind, questions, *rest, **more)

    def _respond(self, client: int) -> Any:
        honest = super()._respond(client)

        def respond(kind: str, facts: dict[str, Any], arrays: Arrays) -> Answered:
            told, given = honest(kind, facts, arrays)
            if client not in LIARS or named(kind, facts) not in ("gradient", "embedded"):
                return told, given
            if not given:
                return told, given
            expected = self.expected(client, arrays["model"], facts["load"])
            false = self.lie(
                self, client, expected, arrays["model"], given["gradient"], facts["round"]
            )
            return told, {"gradient": np.asarray(false, dtype=np.float32)}

        return respond

    def expected(self, client: int, model: Any, load: int) -> Any:
        return self.federation.evidence.expects(self.work, client, load, model)

    def highest(self, model: Any, round_: int) -> float:
        """Return the largest distance at which neither liar is refused in this round."""
        heights = np.linspace(1.0, 5.0, 41)
        honest = deepcopy(self.federation.judge).distances(self.honest(model, round_))
        passed = [height for height in heights if self._passes(honest, float(height))]
        return float(passed[-1]) * 0.995 if passed else 0.0

    def _passes(self, honest: dict[int, float], height: float) -> bool:
        judge = deepcopy(self.federation.judge)
        return not set(judge.hear({**honest, **dict.fromkeys(LIARS, height)})) & set(LIARS)

    def honest(self, model: Any, round_: int) -> dict[int, Measured]:
        """Return how far the others' answers lie off in this round."""
        if getattr(self, "_known", (None,))[0] != round_:
            measured = {}
            for j, (_, facts) in self.questions.items():
                if j in LIARS:
                    continue
                answer = self.node(j).answer("work", facts, {"model": model})[1]
                expected = self.expected(j, model, facts["load"])
                measured[j] = expected.measure(answer["gradient"])
            self._known = round_, measured
        return self._known[1]


def lying_by(
    height: Callable[[Lying, Any, int], float],
    towards: Callable[[Any], Any],
    together: float = 1.0,
) -> Lie:
    """Return a lie that moves the minimum along `towards(model)`, as far as the height allows.

    Parameters
    ----------
    together
        The cosine between the two liars' errors: the rest of each is noise of its own.
    """

    def lie(
        lying: Lying, client: int, expected: Expected, model: Any, gradient: Any, round_: int
    ) -> Any:
        root = expected.metric.root
        wanted = root.T @ towards(model.astype(np.float64))
        own = np.random.default_rng(client).standard_normal(wanted.shape)
        shares = np.array([together, 1 - together]) ** 0.5 / [_length(wanted), _length(own)]
        direction = root @ (shares[0] * wanted + shares[1] * own)
        if not wanted.any():
            return gradient
        one = {client: expected.measure(expected.gradient + direction)}
        judge = deepcopy(lying.federation.judge)
        length = judge.distances(lying.honest(model, round_) | one)[client]
        return expected.gradient + direction * (height(lying, model, round_) / length)

    return lie


def _length(array: Any) -> float:
    return max(float(np.linalg.norm(array)), 1e-30)


def alone(lie: Lie) -> Lie:
    """Let the first liar lie, and the second be honest."""

    def one(lying: Lying, client: int, expected: Any, model: Any, gradient: Any, r: int) -> Any:
        if client != LIARS[0]:
            return gradient
        return lie(lying, client, expected, model, gradient, r)

    return one


def apart(first: Lie, second: Lie) -> Lie:
    """Let each tell a lie of its own."""

    def one(lying: Lying, client: int, *rest: Any) -> Any:
        return (first if client == LIARS[0] else second)(lying, client, *rest)

    return one


def rotated(model: Any) -> Any:
    """Towards the model that takes every class for the next."""
    return model - np.roll(model, 1, axis=1)


def swapped(model: Any) -> Any:
    """Towards the model that takes two classes for each other."""
    step = np.zeros_like(model)
    step[:, 1], step[:, 7] = model[:, 1] - model[:, 7], model[:, 7] - model[:, 1]
    return step


def split(model: Any) -> Any:
    """Towards taking the first classes for the last, all in one direction of the features."""
    signs = np.where(np.arange(model.shape[1]) < model.shape[1] // 2, 1.0, -1.0)
    return (model @ signs)[:, None] * signs[None, :]


def against(model: Any) -> Any:
    """Towards the model's opposite."""
    return model


def just_below(lying: Lying, model: Any, round_: int) -> float:
    return lying.highest(model, round_)


def drifting(lying: Lying, model: Any, round_: int) -> float:
    return min(0.2 * (round_ + 1), lying.highest(model, round_))


def last_rounds(lying: Lying, model: Any, round_: int) -> float:
    """Silent about it until the end, when the running mean is low."""
    return lying.highest(model, round_) if round_ >= lying.rounds - 3 else 0.8


def first_round(lying: Lying, model: Any, round_: int) -> float:
    return lying.highest(model, round_) if round_ == 0 else 1.0


def steadily(towards: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keep the direction that the first model with one gives."""
    kept: list[Any] = []

    def fixed(model: Any) -> Any:
        found = towards(model)
        if not kept and found.any():
            kept.append(found)
        return kept[0] if kept else found

    return fixed


LIES: dict[str, Lie] = {
    "split, just below": lying_by(just_below, split),
    "rotated, just below": lying_by(just_below, rotated),
    "swapped, just below": lying_by(just_below, swapped),
    "against, just below": lying_by(just_below, against),
    "rotated, drifting": lying_by(drifting, rotated),
    "swapped, in the last rounds": lying_by(last_rounds, swapped),
    "rotated, in the last rounds": lying_by(last_rounds, rotated),
    "rotated, in the first round": lying_by(first_round, rotated),
    "sign flipped": lambda _l, _c, _e, _m, gradient, _r: -gradient,
    "scaled": lambda _l, _c, _e, _m, gradient, _r: 3 * gradient,
}


def fresh_lies() -> dict[str, Lie]:
    """Return all lies, those that remember something without any memory."""
    return LIES | {
        "rotated, steadily": lying_by(just_below, steadily(rotated)),
        "swapped, steadily": lying_by(just_below, steadily(swapped)),
        "swapped, steadily, a little apart": lying_by(just_below, steadily(swapped), _HIDDEN),
        "split, steadily, a little apart": lying_by(just_below, steadily(split), _HIDDEN),
        "rotated, steadily, a little apart": lying_by(just_below, steadily(rotated), _HIDDEN),
        "swapped, in the last rounds, a little apart": lying_by(last_rounds, swapped, _HIDDEN),
        "rotated, drifting, a little apart": lying_by(drifting, rotated, _HIDDEN),
        "swapped, steadily, alone": alone(lying_by(just_below, steadily(swapped))),
        "rotated, steadily, alone": alone(lying_by(just_below, steadily(rotated))),
        "swapped and split, steadily": apart(
            lying_by(just_below, steadily(swapped)), lying_by(just_below, steadily(split))
        ),
    }


def false_parity(features: float, targets: float, *, silent: bool = False) -> Script:
    """Let the liars send parity of rotated labels, stretched, then useless gradients or none."""

    def change(client: int, question: str, answer: Answered) -> Answered:
        facts, arrays = answer
        if client not in LIARS or not arrays:
            return answer
        if question in ("parity", "block_parity"):
            rotated_labels = np.roll(arrays["targets0"], 1, axis=1).astype(np.float32)
            stretched = np.float32(features) * arrays["features0"].astype(np.float32)
            false = {"features0": stretched, "targets0": np.float32(targets) * rotated_labels}
            return facts, false
        if question in ("gradient", "embedded"):
            return facts, {"gradient": -3 * arrays["gradient"]}
        return answer

    def delay(client: int, question: str, _facts: dict[str, Any]) -> float:
        lost = silent and client in LIARS and question in ("gradient", "embedded")
        return np.inf if lost else 0.0

    return Script(delay, change)


def claim_more(shards: list[Path], times: int = 5) -> None:
    """Give each liar its points several times, with rotated labels."""
    for path in (shards[j] for j in LIARS):
        shard = read_shard(path)
        labels = np.repeat((shard.labels + 1) % 10, times)
        np.savez(path, inputs=np.repeat(shard.inputs, times, axis=0), labels=labels)


def points_of(partition: str, seed: int) -> dict[str, int]:
    """Return the points of ten nodes, by name, as an operator states them."""
    rows = deal_rows(load_dataset("digits").labels, 10, partition, seed=seed)
    return {node_name(j): len(each) for j, each in enumerate(rows)}


def lied_to(
    folder: Path,
    scheme: dict[str, Any],
    lie: Lie | None,
    script: Script | None = None,
    *,
    partition: str = "iid",
    rounds: int = 15,
    seed: int = 0,
    components: int = 300,
    deal: Callable[[list[Path]], None] | None = None,
    **more: Any,
) -> tuple[list[Exchange], list[str]]:
    """Run a federation of ten nodes with two liars; return what happened and what was said.

    Parameters
    ----------
    deal
        Changes the files of the nodes' data.
    """
    base = experiment_of(10, rounds, scheme, **more)
    changes = {
        "data.partition": partition,
        "features.n_components": components,
        "seeds": [seed],
    }
    experiment = changed(base.model_dump(), changes, "a test")
    ordinary = transport_of(experiment, folder / "nodes", script)
    if deal is not None:
        deal(ordinary.shards)
    grid: Loopback = ordinary
    if lie is not None:
        grid = Lying(ordinary.folder, ordinary.shards, script)
        grid.lie, grid.rounds = lie, rounds
    real = Federation.exchange

    def remembering(self: Any, ask: Any, *rest: Any) -> Any:
        grid.federation, grid.work = self, ask.work  # type: ignore[attr-defined]
        return real(self, ask, *rest)

    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "exchange", remembering)
        try:
            federate(grid, experiment, RunDirectory(folder / "run"), said.append)
        except InputError as error:
            said.append(str(error))
    return list(Journal(folder / "run").exchanges()), said
