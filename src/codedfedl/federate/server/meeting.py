"""The start of a federation: wait for all nodes, and agree on what they compute."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from codedfedl.errors import InputError
from codedfedl.federate.job import HELPER, Job
from codedfedl.federate.node.node import NAME
from codedfedl.federate.server.checks import RefusedError
from codedfedl.federate.server.measuring import advice_on_claims, counted_points, unbelieved
from codedfedl.federate.transport import Arrival, Note, Say, Transport, printable
from codedfedl.io.names import count_of, listed
from codedfedl.learning.features import Encoder, FeatureMap, fingerprint, same_map
from codedfedl.learning.torch_network import chosen_loss
from codedfedl.runs.config import UNKNOWN_POINTS, Experiment
from codedfedl.runs.federation_sections import FederationConfig
from codedfedl.runs.journal import Members

RETURN_SECONDS = 30.0
"""Seconds that a resumed federation waits for its nodes."""

LOOK_SECONDS = 0.5
"""Seconds between two looks for new nodes."""

GREETING_SECONDS = 45.0
"""Seconds until a greeting is taken to be lost."""

AGAIN_SECONDS = 10.0
"""Seconds until a refused node is asked again: it may be mended."""

MOST_REASONS = 8
"""Nodes of which an error says why they are not ready."""

MAX_POINTS = 2**40
"""Points of a node."""

MAX_INPUTS = 10**7
"""Inputs of a point, some of which an encoder is tried on."""

MAX_NUMBERS = 10**8
"""Numbers of a feature map or a model: what a server holds without trouble."""

_FORM = {
    "name": str,
    "points": int,
    "inputs": int,
    "columns": int,
    "classes": bool,
    "fingerprint": list,
    "table": list,
    "words": list,
}


class Greetings:
    """Nodes that were greeted, and what they say of themselves.

    Attributes
    ----------
    greeted
        Facts of every node that can take part.
    refused
        Why others cannot, by node.
    asked
        Nodes that have not answered yet, by the number of their greeting.
    """

    def __init__(
        self, transport: Transport, experiment: Experiment, job: Job, say: Say, note: Note
    ) -> None:
        self.transport, self.say, self.note = transport, say, note
        self.greeted: dict[int, dict[str, Any]] = {}
        self.refused: dict[int, str] = {}
        self._features, self._job = experiment.feature_map(), job
        self.asked: dict[int, int] = {}
        self._not_before: dict[int, float] = {}  # when to greet a node, again perhaps

    def look(self, nodes: Collection[int], until: float) -> list[int]:
        """Greet nodes that are not greeted yet; return which have answered meanwhile."""
        transport, now, ready = self.transport, self.transport.now(), []
        here = [node for node in nodes if now >= self._not_before.get(node, 0.0)]
        self._not_before |= dict.fromkeys(here, np.inf)
        questions = {node: (node, {"job": asdict(self._job)}) for node in here}
        # However little time is left: the engine takes no message that expires on the way to it.
        self.asked |= transport.ask("hello", questions, {}, GREETING_SECONDS, largest=0)
        for arrival in transport.gather(self.asked, min(now + LOOK_SECONDS, until)):
            node = self.asked.pop(arrival.question)
            if arrival.facts.get("role") == HELPER:  # it holds no points, and is asked later
                continue
            try:
                self.greeted[node] = facts = self._checked(arrival)
                self.note("greeting", name=facts["name"], node=node, **_noted(facts))
                ready.append(node)
            except RefusedError as error:
                if self.refused.get(node) != str(error):
                    self.say(f"refused: {error}")
                self.refused[node] = str(error)
                lost = arrival.status in ("late", "gone")
                self._not_before[node] = now + (0.0 if lost else AGAIN_SECONDS)  # once mended
        transport.sleep(0.0 if self.asked else LOOK_SECONDS)
        return ready

    def _checked(self, arrival: Arrival) -> dict[str, Any]:
        """Return a node's greeting, or say why it cannot take part."""
        facts, features = arrival.facts, self._features
        node = self.transport.called(arrival.client)
        if arrival.status != "answer":
            raise RefusedError(f"{node}: {arrival.reason}")
        if any(type(facts.get(key)) is not kind for key, kind in _FORM.items()):
            raise RefusedError(f"{node} sent a malformed greeting")
        if not NAME.fullmatch(facts["name"]):
            raise RefusedError(f"{node} has an invalid name: use letters, digits, . _ and -")
        node, batches = facts["name"], self._job.batches
        if not batches <= facts["points"] <= MAX_POINTS:
            raise RefusedError(f"{node} has {facts['points']} points for {batches} mini-batches")
        if not 1 <= facts["inputs"] <= MAX_INPUTS:
            raise RefusedError(f"{node} has inputs = {facts['inputs']}, which is impossible")
        try:
            width = features.size(facts["inputs"])
        except InputError as error:  # images of another shape, or no images
            raise RefusedError(f"{node}: {error}") from None
        for key, most in (("table", facts["inputs"]), ("words", facts["columns"])):
            if len(facts[key]) not in (0, most) or not all(map(_is_text, facts[key])):
                raise RefusedError(f"{node} sent a malformed greeting")
        for key in ("inputs", "columns"):
            if not 1 <= facts[key] <= MAX_NUMBERS // width:
                raise RefusedError(f"{node} has {key} = {facts[key]}, which is impossible")
        _check_features(node, features, facts)
        if any(other["name"] == facts["name"] for other in self.greeted.values()):
            raise RefusedError(f"{node} has the name of another node: give each its own")
        return facts


def _is_text(value: object) -> bool:
    return type(value) is str and value == printable(value)


def _noted(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the operator is shown of a greeting, as far as it is of the right form."""
    version, left = facts.get("version"), facts.get("epsilon_left")
    known = type(left) is float and 0 <= left < np.inf
    return {
        "version": printable(version, 40) if version else None,
        "epsilon_left": left if known else None,
    }


def meet(
    transport: Transport, experiment: Experiment, config: FederationConfig, say: Say, note: Note
) -> Members:
    """Wait until as many nodes as planned are ready, and agree on the feature map."""
    job = job_of(experiment, secrets.token_hex(16))
    greetings = Greetings(transport, experiment, job, say, note)
    until = transport.now() + config.ready_timeout
    while len(ready := _alike(greetings.greeted, config)) < config.clients:
        if transport.now() >= until:
            raise InputError(_not_ready(config, ready, greetings))
        for node in greetings.look(transport.nodes(), until):
            say(f"{greetings.greeted[node]['name']} is ready")
    members = _members(job.key, ready, config)
    if advice := advice_on_claims(members.names, members.claims, members.points):
        say(f"advice: {advice}")
    return members


def _members(key: str, ready: Mapping[int, dict[str, Any]], config: FederationConfig) -> Members:
    """Return the first nodes by name as members."""
    chosen = sorted(ready, key=lambda node: str(ready[node]["name"]))[: config.clients]
    facts = [ready[node] for node in chosen]
    claims = {fact["name"]: fact["points"] for fact in facts}
    words = sorted({word for fact in facts for word in fact["words"]})
    return Members(
        key=key,
        names=list(claims),
        nodes=chosen,
        points=counted_points(claims, config),
        claims=list(claims.values()),
        inputs=facts[0]["inputs"],
        columns=config.classes or len(words) or max(fact["columns"] for fact in facts),
        classes=facts[0]["classes"],
        table=facts[0]["table"],
        words=words,
    )


def _alike(
    greeted: Mapping[int, dict[str, Any]], config: FederationConfig
) -> dict[int, dict[str, Any]]:
    """Return the largest group of nodes whose data have the same form, as far as believed."""
    groups: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for node, facts in greeted.items():
        if facts["name"] not in config.without:
            groups.setdefault(_form(facts), {})[node] = facts
    largest = max(groups.values(), key=len, default={})
    doubted = unbelieved(largest, config)
    return {node: facts for node, facts in largest.items() if node not in doubted}


def _form(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the data of all nodes must have in common."""
    return facts["inputs"], facts["classes"], *facts["table"], bool(facts["words"])


def _named(names: Sequence[str]) -> str:
    return f" ({listed(names)})" if names else ""


def _not_ready(config: FederationConfig, ready: Mapping[int, Any], greetings: Greetings) -> str:
    doubted = unbelieved(greetings.greeted, config)
    others = [
        doubted.get(node)
        or f"{facts['name']} has {facts['inputs']} inputs{_named(facts['table'])}, classes = "
        f"{facts['classes']}{_named(facts['words'])}, unlike most"
        for node, facts in greetings.greeted.items()
        if node not in ready and facts["name"] not in config.without
    ]
    called = greetings.transport.called
    silent = [f"{called(node)} has not answered" for node in greetings.asked.values()]
    reasons = [*greetings.refused.values(), *others, *silent]
    if len(reasons) > MOST_REASONS:
        reasons[MOST_REASONS:] = [f"and {len(reasons) - MOST_REASONS} more"]
    why = "".join(f"; {reason}" for reason in reasons)
    return (
        f"{len(ready)} of {config.clients} nodes are ready after {config.ready_timeout:g} s: "
        f"start the others, raise federation.ready_timeout, or lower federation.clients{why}"
    )


def _check_features(node: str, features: FeatureMap, facts: Mapping[str, Any]) -> None:
    """Refuse a node whose feature map is not ours."""
    digest = getattr(features, "digest", "")
    if facts.get("encoder", "") != digest:
        theirs = str(facts.get("encoder"))[:16] or "none, since it is not a file"
        ours = digest[:16] or "none, since it is a function"
        raise RefusedError(
            f"{node} has another encoder, whose SHA-256 begins with {theirs} and ours with {ours}: "
            "give it a copy of our file"
        )
    expected, other = fingerprint(features, facts["inputs"]).ravel(), facts["fingerprint"]
    if all(type(value) is float for value in other) and same_map(expected, np.array(other)):
        return
    if isinstance(features, Encoder):
        raise RefusedError(
            f"{node} has another encoder: on the fixed probes its outputs are not those of "
            f"{features.source!r}; install the same version with the same weights"
        )
    raise RefusedError(
        f"{node} computes other features: install the same version of codedfedl on all nodes"
    )


def wait_for(
    transport: Transport, experiment: Experiment, members: Members, say: Say, note: Note
) -> Members:
    """Give the nodes of a resumed federation time to reconnect; return the members.

    Without keys, or with a new one, a node that was started again has another number: it is known
    by its name, if its data have the same form and size.
    """
    greetings = Greetings(transport, experiment, job_of(experiment, members.key), say, note)
    until, nodes = transport.now() + RETURN_SECONDS, list(members.nodes)
    while missing := set(nodes) - (here := transport.nodes()):
        if transport.now() > until:
            say(f"continuing without {count_of(len(missing), 'node')}; nodes may rejoin")
            break
        for node in greetings.look(here - set(nodes), until):
            facts = greetings.greeted[node]
            index = members.names.index(facts["name"]) if facts["name"] in members.names else None
            if index is None or nodes[index] in here:  # a stranger, or somebody else's name
                continue
            form = (facts["points"], facts["inputs"], facts["classes"])
            if form != (members.claimed[index], members.inputs, members.classes):
                say(f"refused: {facts['name']} has other data than before")
                continue
            nodes[index] = node
            say(f"{facts['name']} is back")
    return replace(members, nodes=nodes)


def job_of(experiment: Experiment, key: str, members: Members | None = None) -> Job:
    """Return what all nodes must agree on; label columns and scale once they are known."""
    config, chosen = experiment.features, experiment.schemes[0]
    kind = chosen.features or config.kind
    encoder = {"text": experiment.data.text is not None, "normalise": config.normalise}
    return Job(
        key=key,
        kind=kind,
        n_components=config.components(UNKNOWN_POINTS),
        sigma=1.0 if kind == "encoder" else config.known_sigma,
        seed=experiment.seeds[0],
        batches=experiment.data.batches,
        columns=0 if members is None else members.columns,
        words=() if members is None else tuple(members.words),
        tiles=asdict(config.tiles()),
        scaling={} if members is None else members.scaling,
        encoder=encoder if kind == "encoder" else {},
        model=_network_of(experiment, members),
    )


def _network_of(experiment: Experiment, members: Members | None) -> dict[str, Any]:
    """Return what nodes must know of a network; its loss once it is known what the labels are."""
    model, image = experiment.model, experiment.features.image
    if model.kind == "linear":
        return {}
    loss = chosen_loss(model.loss, classes=members is None or members.classes)
    return {"module": model.module, "loss": loss, "image": image and list(image)}
