"""`PacedFedAvg`: NVIDIA FLARE's federated averaging, with deadlines, windows and right weights.

A model controller with public methods alone. Every site has a task of its own, which stands until
it is answered: an answer after its round's deadline is added to a later model.
"""

import time
from queue import Empty, SimpleQueue
from typing import Any, Literal

import numpy as np
from nvflare.apis.dxo import MetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.model_controller import ModelController

from codedfedl.pacing.pacer import Pacer
from codedfedl.pacing.rounds import Round, RoundPlan

__all__ = ["PacedFedAvg"]

CHECK_SECONDS = 1.0  # Between two looks whether the run is aborted.

Model = dict[str, Any]


class PacedFedAvg(ModelController):  # type: ignore[misc]
    """Federated averaging whose rounds end when they should.

    A client script may do its passes over ``TimedBatches(loader, model.meta.get("window", inf))``
    of `codedfedl.pacing.flower.batches`, and send the `metrics` of these in its model's meta.

    Parameters
    ----------
    num_clients
        Sites to wait for before the first round.
    late, deadline, cap, learn_only
        See `codedfedl.pacing.Pacer`.
    persistor_id
        The job's component that loads and saves the model.
    """

    def __init__(
        self,
        *,
        num_rounds: int = 5,
        num_clients: int = 2,
        late: Literal["count", "drop"] = "count",
        deadline: float | None = None,
        cap: float = 20.0,
        learn_only: bool = False,
        persistor_id: str = "persistor",
    ) -> None:
        super().__init__(persistor_id=persistor_id, ignore_result_error=True)
        self.num_rounds, self.num_clients = num_rounds, num_clients
        self.late, self.deadline, self.cap, self.learn_only = late, deadline, cap, learn_only

    def run(self) -> None:
        """Train."""
        pacer = Pacer(
            late=self.late, deadline=self.deadline, cap=self.cap, learn_only=self.learn_only
        )
        replies = SimpleQueue[tuple[FLModel, float]]()
        model, sent = self.load_model(), dict[int, Model]()
        while len(self.engine.get_clients()) < self.num_clients and not self.abort_signal.triggered:
            time.sleep(CHECK_SECONDS)
        for number in range(self.num_rounds):
            plan = pacer.begin(self.sample_clients(), time.monotonic())
            sent[number] = model.params
            self._ask(plan, model, number, replies)
            while pacer.waiting and not self.abort_signal.triggered:
                left = pacer.until - time.monotonic()
                if left <= 0:
                    break
                try:
                    _note(pacer, sent, *replies.get(timeout=min(left, CHECK_SECONDS)))
                except Empty:
                    continue
            if self.abort_signal.triggered:
                return
            played = pacer.end(time.monotonic())
            self.info(f"paced: round {number + 1}: {played.sentence()}")
            model = FLModel(params=averaged(played, model.params), meta=model.meta)
            self.save_model(model)

    def _ask(self, plan: RoundPlan, model: FLModel, number: int, replies: Any) -> None:
        """Send a round's tasks, which no timeout ends."""
        for site in plan.ask:
            meta = dict(model.meta or {}) | {"paced-round": number}
            if site in plan.windows:
                meta["window"] = plan.windows[site]
            task = FLModel(
                params_type=ParamsType.FULL,
                params=model.params,
                current_round=number,
                total_rounds=self.num_rounds,
                meta=meta,
            )
            self.send_model(
                data=task,
                targets=[site],
                callback=lambda reply: replies.put((reply, time.monotonic())),
            )


def _note(pacer: Pacer, sent: dict[int, Model], reply: FLModel, when: float) -> None:
    """Tell the pacer of an answer; its question's meta lies in `props`."""
    meta = reply.meta
    asked, share = meta["props"]["paced-round"], meta.get("paced-share") or None
    updates = updates_of(reply, sent[asked])
    pacer.arrived(
        meta["client_name"],
        when,
        examples=float(meta.get(MetaKey.NUM_STEPS_CURRENT_ROUND) or 1.0),
        share=share,
        compute=meta.get("paced-seconds"),
        length=float(np.sqrt(sum(np.square(u).sum() for u in updates.values()))),
        asked=asked,
        tag=updates,
    )


def updates_of(reply: FLModel, asked: Model) -> Model:
    """Return what a reply adds to the model that it is for."""
    if reply.params_type == ParamsType.DIFF:
        return {name: np.asarray(update) for name, update in reply.params.items()}
    return {name: np.asarray(new) - asked[name] for name, new in reply.params.items()}


def averaged(played: Round, model: Model) -> Model:
    """Return the model plus the weighted updates of a round."""
    new = {name: np.asarray(value) for name, value in model.items()}
    for answer, weight in played.weights:
        for name, update in answer.tag.items():
            new[name] = (new[name] + weight * update).astype(new[name].dtype)
    return new
