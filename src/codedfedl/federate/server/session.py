"""The life of a federation at its server.

Wait until all nodes are ready and agree; measure them; fit a fleet; plan; let them embed and send
parity; play rounds; save the model. Every finished step is in the journal, so that a server that
was killed continues where it was.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.columns import totals
from codedfedl.core.disclosure import needs_helper, only_private
from codedfedl.core.loop import Driver, drive
from codedfedl.core.protocol import Ask, Inbox, Scheme
from codedfedl.core.record import metric_name
from codedfedl.data.dataset import chance_of
from codedfedl.data.loading import DATASET_NAMES, load_dataset
from codedfedl.data.shards import UNSCALED, Scaling, Shard, read_shard
from codedfedl.data.tabular import read_preparation
from codedfedl.errors import InputError
from codedfedl.federate.secure.sums import Sums
from codedfedl.federate.secure.terms import keep_account
from codedfedl.federate.server.asking import Asking
from codedfedl.federate.server.judging import Watch, suspects_of
from codedfedl.federate.server.measuring import agree_on_scaling, probe
from codedfedl.federate.server.meeting import job_of, meet, wait_for
from codedfedl.federate.server.presence import Presence
from codedfedl.federate.server.rounds import Federation
from codedfedl.federate.transport import Note, Say, Transport
from codedfedl.io.files import synced
from codedfedl.io.names import listed
from codedfedl.learning.features import map_settings
from codedfedl.learning.learner import Learner
from codedfedl.learning.metrics import accuracy, r_squared
from codedfedl.models.model import Model
from codedfedl.privacy.fixed_point import LEAST_SUMMED
from codedfedl.runs.advice import Conduct, advice, no_better_than_chance, nobody_arrived
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.federation import (
    federation_config,
    federation_task,
    first_model,
    fitted,
    scheme_of,
    start,
)
from codedfedl.runs.journal import Journal, Members
from codedfedl.runs.status import StatusFile
from codedfedl.runs.tables import Ending, planned_share, write_records
from codedfedl.runs.watching import NamedRound

GOODBYE_SECONDS, MAX_GOODBYE_SECONDS = 15.0, 120.0


def federate(
    transport: Transport, experiment: Experiment, directory: RunDirectory, say: Say = print
) -> None:
    """Run or continue a federation until its model and records are written, or it is stopped."""
    scheme, evaluation = scheme_of(experiment), Evaluation(experiment)  # refused at once
    with directory.opened(experiment) as status:
        directory.stop_wanted()  # of an earlier run
        journal, began = Journal(directory.path), transport.now()
        journal.check()
        asking = _assembled(transport, experiment, journal, _telling(say, status), directory.event)
        if not journal.traces.is_file():
            probe(asking).write(journal.traces)
            synced(journal.traces)
            journal.keep_beginning(transport.now() - began)
        session = Session(experiment, directory, scheme, evaluation, asking, say)
        if session.play(status):
            session.finish()


class Session:
    """A federation whose members are known and measured: its rounds, and its end."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        scheme: Scheme,
        evaluation: "Evaluation",
        asking: Asking,
        say: Say,
    ) -> None:
        self.experiment, self.directory, self.scheme = experiment, directory, scheme
        self.evaluation, self.say = evaluation, say
        self.asking, self.journal, self.members = asking, asking.journal, asking.members
        evaluation.match(self.members)
        fit = fitted(self.journal, self.members)
        fit.fleet.write(directory.path / "fleet.csv")
        self.fleet = fit.fleet
        self._first = first_model(asking.task, experiment.seeds[0])
        state = start(scheme, experiment, self.members, fit, self._first)
        account = scheme.describe(state).account
        if account is not None:
            keep_account(directory, experiment, account)
        elif only_private(scheme.disclosure):
            raise InputError(
                "the scheme does not declare what it releases: return an account from describe"
            )
        sums = Sums(asking, account) if needs_helper(scheme.disclosure) else None
        shares = 0 if account is None else account.shares
        self._least = 0 if sums is None else max(LEAST_SUMMED, shares + 1)
        self.federation = Federation(asking, sums)
        self.driver = Driver(scheme, state, asking.config.rounds)

    def play(self, status: StatusFile) -> bool:
        """Play what is left of the rounds; return whether all were played, or it was stopped.

        Between two rounds it waits until enough nodes are there.
        """
        config, driver, names = self.asking.config, self.driver, self.members.names
        watch, scaling = Watch(config.fall, driver.state.task.held), Scaling(**self.members.scaling)
        stop_wanted = self.directory.stop_wanted
        presence = Presence(self.asking, self._least, stop_wanted)
        if self.journal.rounds() < config.rounds and not presence.hold(None):
            return self._stopped(status)
        for exchange in self._played():
            model, learner = np.asarray(driver.state.model), self.asking.task.learner
            metric = self.evaluation.metric(model, learner, scaling)
            has_model = driver.state.model is not self._first
            record = replace(exchange.record, metric=metric, has_model=has_model)
            self.journal.append(replace(exchange, record=record))
            named = NamedRound.of(record, names)
            sentence = named.sentence(config.rounds)
            self.say(sentence)
            self.directory.event("exchange", **named.facts)
            status.running(sentence, round_=named.round, rounds=config.rounds, metric=metric)
            if stop_wanted():
                return self._stopped(status)
            if not record.is_setup and watch.fell(metric, record.arrived):
                raise InputError(watch.alarm(suspects_of(self.federation.judge), names))
            if driver.played < config.rounds and not presence.hold(record):
                return self._stopped(status)
        return True

    def _stopped(self, status: StatusFile) -> bool:
        """End without a goodbye: the nodes keep what they have for later."""
        self.say(f"stopped: {self.directory.path} is kept; run it again to continue")
        status.stopped()
        return False

    def _played(self) -> Iterator[Exchange]:
        """Bring the scheme to where the journal ends, and drive it on."""
        recorded = _Recorded(self.federation, self.journal.exchanges())
        done = self.journal.count()
        with np.errstate(over="ignore", invalid="ignore"):  # a step may be too large
            for _ in islice(drive(self.driver, recorded), done):
                pass
            if done:
                self.federation.resume()
            for _ in drive(self.driver, self.federation):
                assert self.federation.last is not None
                yield self.federation.last

    def finish(self) -> None:
        """Take leave of the nodes, and write the records and the model."""
        directory, journal, driver = self.directory, self.journal, self.driver
        model = np.asarray(driver.state.model)
        facts = self.scheme.describe(driver.state).facts
        ending = Ending(
            members=self.members,
            fleet=self.fleet,
            planned_share=planned_share(self.scheme, driver.state),
            facts={**facts, **self.evaluation.facts()},
            model=model,
        )
        journal.keep_gone(self._part())
        directory.save({"model": model, "round": np.array(driver.played)})
        write_records(directory, self.experiment, journal, ending)
        if np.isfinite(model).all():
            directory.save_model("model.npz", self._trained_model(ending))
        records = journal.records()
        chance = self.evaluation.facts().get("chance")
        for warning in (nobody_arrived(records), no_better_than_chance(records, chance)):
            if warning:
                self.say(f"warning: {warning}")
        for sentence in advice(Conduct(records, self.members.names, journal.probed_seconds())):
            self.say(f"advice: {sentence}")
        self.say(f"done: {directory.path}")

    def _part(self) -> list[int]:
        """End the federation at the clients; return who is gone.

        A node that is late with its last answer says goodbye after it: it is given the time.
        """
        asking, last = self.asking, self.federation.last
        if self.federation.sums is not None:
            self.federation.sums.end()
        deadline = last.record.deadline if last is not None else 0.0
        patience = float(min(GOODBYE_SECONDS + 2 * deadline, MAX_GOODBYE_SECONDS))
        asked = asking.question("goodbye", {j: {} for j in asking.everyone}, patience)
        answered = {
            arrival.client
            for arrival in asking.transport.gather(asked, asking.transport.now() + patience)
            if np.isfinite(arrival.when)
        }
        return [j for j in asking.everyone if j not in answered]

    def _trained_model(self, ending: Ending) -> Model:
        """Return the model with its card, calibrated on the test points where there are some."""
        members, data = self.members, self.experiment.data
        scaling = Scaling(**members.scaling)
        prepared = None if data.preparation is None else read_preparation(data.preparation)
        classes = (prepared and prepared.classes) or members.words or range(members.columns)
        columns = tuple(members.table) if data.text is None else (data.text,)
        model = Model(
            features=self.evaluation.features,
            learner=self.asking.task.learner,
            weights=ending.model,
            inputs=members.inputs,
            classes=np.array(classes) if members.classes else None,
            columns=columns if prepared is None else prepared.names,
            labels=tuple((data.label or "label").split(",")),
            low=np.array(scaling.low) if scaling.low else None,
            span=np.array(scaling.span) if scaling.low else None,
            offset=np.array(scaling.offset) if scaling.offset else None,
            scale=np.ones(members.columns) if scaling.offset else None,
            card=self._card(ending),
            preparation=prepared,
        )
        shard = self.evaluation.shard
        if shard is None or not members.classes:
            return model
        tested = f"the server's {len(shard.labels):,} test points"
        named = model.classes[shard.labels] if model.classes is not None else shard.labels
        return model.calibrated(scaling.inputs(shard.inputs), named, tested)

    def _card(self, ending: Ending) -> dict[str, Any]:
        """Return what people want to know of the model; its guarantee, if there is one, too."""
        scheme, private = self.experiment.schemes[0], self.directory.privacy()
        records = self.journal.records()
        metric = float(records[-1].metric)
        return {
            "training_points": sum(self.members.points),
            "scheme": scheme.plain_name,
            "setting": scheme.label,
            "seed": self.experiment.seeds[0],
            "features": map_settings(self.evaluation.features),
            **totals(records),
            "simulated": False,
            "metric": metric_name(self.members.classes),
            "test_metric": metric if np.isfinite(metric) else None,
            "epsilon": ending.facts.get("epsilon"),
            "privacy": {"holds": private["holds"], **private["runs"][0]} if private else None,
            "calibrated_on": None,
            "temperature": None,
        }


def _telling(say: Say, status: StatusFile) -> Say:
    """Return a function that says a sentence and also writes it to the status."""

    def tell(sentence: str) -> None:
        say(sentence)
        status.running(sentence)

    return tell


def _assembled(
    transport: Transport, experiment: Experiment, journal: Journal, say: Say, note: Note
) -> Asking:
    """Wait for the nodes, those of the journal where there is one."""
    config, members = federation_config(experiment), journal.members()
    if members is None:
        members = meet(transport, experiment, config, say, note)
        if config.scale:
            say("the nodes agree on a scale")
            job = job_of(experiment, members.key, members)
            scaling = agree_on_scaling(transport, config, members, job)
            members = replace(members, scaling=asdict(scaling))
        journal.keep_members(members)
    else:
        members = wait_for(transport, experiment, members, say, note)
    task, job = federation_task(experiment, members), job_of(experiment, members.key, members)
    return Asking(transport, config, members, task, job, journal, say)


class _Recorded:
    """A runtime that answers from the journal."""

    def __init__(self, federation: Federation, exchanges: Iterator[Exchange]) -> None:
        self.federation, self.exchanges = federation, exchanges

    def exchange(self, ask: Ask, model: Array, round_: int) -> Inbox:
        return self.federation.recall(ask, model, round_, next(self.exchanges))


class Evaluation:
    """Test points and their features; reads the data at once, so that a wrong path is refused."""

    def __init__(self, experiment: Experiment) -> None:
        assert experiment.federation is not None
        name = experiment.federation.test
        self._embedded: Any = None
        self.shard: Shard | None = None
        if name in DATASET_NAMES:
            dataset = load_dataset(name)
            self.shard = Shard(dataset.test_inputs, dataset.test_labels)
        elif name is not None:
            data = experiment.data
            self.shard = read_shard(name, data.label, data.text, data.preparation)
        self.features = experiment.feature_map(experiment.seeds[0], experiment.schemes[0])

    def match(self, members: Members) -> None:
        """Take the nodes' numbers of classes; refuse test points with other columns."""
        if self.shard is None:
            return
        if (names := list(self.shard.names)) != members.table and names and members.table:
            raise InputError(
                f"the test points have the columns {listed(names)}, and the nodes "
                f"{listed(members.table)}: name the same columns"
            )
        self.shard = self.shard.in_classes(members.words)

    def facts(self) -> dict[str, float]:
        """Return how many test points there are, and what answering without inputs gives."""
        if self.shard is None:
            return {}
        labels = np.asarray(self.shard.labels)
        chance = chance_of(labels, self.shard.is_classification)
        return {"chance": chance, "test_points": float(len(labels))}

    def metric(self, model: Array, learner: Learner, scaling: Scaling = UNSCALED) -> float:
        """Return accuracy or R², on the scale that the clients have; NaN without test points."""
        if self.shard is None:
            return float("nan")
        if self._embedded is None:
            inputs = scaling.inputs(np.asarray(self.shard.inputs))
            points = inputs if self.shard.is_text else inputs.astype(np.float32)
            self._embedded = self.features.transform(points)
        predictions = np.asarray(learner.scores(model, self._embedded))[:, None, :]
        if self.shard.is_classification:
            return float(accuracy(predictions, np.asarray(self.shard.labels))[0])
        rows = np.arange(len(self.shard.labels))
        targets = scaling.targets(self.shard.targets(rows, learner.outputs))
        return float(r_squared(predictions, targets)[0])
