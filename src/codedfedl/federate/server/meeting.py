"""The start of a federation: wait for all nodes, and agree on what they compute."""

import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from codedfedl.errors import InputError
from codedfedl.federate.job import HELPER, Job
from codedfedl.federate.node.node import NAME
from codedfedl.federate.server.checks import RefusedError
from codedfedl.federate.server.measuring import advice_on_claims, counted_points, unbelieved
from codedfedl.federate.transport import Arrival, Say, Transport
from codedfedl.learning.features import Encoder, FeatureMap, fingerprint, same_map
from codedfedl.runs.config import Experiment, FederationConfig
from codedfedl.runs.journal import Members

_RETURN = 30.0  # seconds that a resumed federation waits for its nodes
_LOOK = 0.5  # seconds between two looks for new nodes
_GREETING = 45.0  # seconds until a greeting is taken to be lost
_AGAIN = 10.0  # seconds until a refused node is asked again

_FORM = {
    "name": str,
    "points": int,
    "inputs": int,
    "columns": int,
    "classes": bool,
    "fingerprint": list,
}
_MOST_POINTS = 2**40
_MOST_INPUTS = 10**7  # of a point, some of which an encoder is tried on
_MOST_NUMBERS = 10**8  # of a feature map or a model: what a server holds without trouble


def meet(
    transport: Transport,
    experiment: Experiment,
    config: FederationConfig,
    say: Say,
) -> Members:
    """Wait until as many nodes as planned are ready, and agree on the feature map."""
    features = experiment.feature_map()
    job = job_of(experiment, secrets.token_hex(16))
    until = transport.now() + config.ready_timeout
    asked: dict[int, int] = {}
    greeted: dict[int, dict[str, Any]] = {}
    refused: dict[int, str] = {}
    not_before: dict[int, float] = {}  # when to greet a node, again perhaps
    while len(ready := _alike(greeted, config)) < config.clients:
        now = transport.now()
        if now >= until:
            raise InputError(_not_ready(config, ready, greeted, refused))
        here = [n for n in transport.nodes() if now >= not_before.get(n, 0.0)]
        not_before |= dict.fromkeys(here, np.inf)
        greetings = {node: (node, {"job": asdict(job)}) for node in here}
        patience = min(until - now, _GREETING)
        asked |= transport.ask("hello", greetings, {}, patience, largest=0)
        for arrival in transport.gather(asked, min(now + _LOOK, until)):
            del asked[arrival.question]
            if arrival.facts.get("role") == HELPER:  # it holds no points, and is asked later
                continue
            try:
                greeted[arrival.client] = _greeted(arrival, features, job.batches, greeted)
                say(f"{greeted[arrival.client]['name']} is ready")
            except RefusedError as error:
                if refused.get(arrival.client) != str(error):
                    say(f"refused: {error}")
                refused[arrival.client] = str(error)
                lost = arrival.status in ("late", "gone")
                not_before[arrival.client] = now + (0.0 if lost else _AGAIN)  # it may be mended
        transport.sleep(0.0 if asked else _LOOK)
    members = _members(job.key, ready, config)
    if advice := advice_on_claims(members.names, members.claims, members.points):
        say(f"advice: {advice}")
    return members


def _members(key: str, ready: Mapping[int, dict[str, Any]], config: FederationConfig) -> Members:
    """Return the first nodes by name as members."""
    chosen = sorted(ready, key=lambda node: str(ready[node]["name"]))[: config.clients]
    facts = [ready[node] for node in chosen]
    claims = {fact["name"]: fact["points"] for fact in facts}
    return Members(
        key=key,
        names=list(claims),
        nodes=chosen,
        points=counted_points(claims, config),
        claims=list(claims.values()),
        inputs=facts[0]["inputs"],
        columns=config.classes or max(fact["columns"] for fact in facts),
        classes=facts[0]["classes"],
    )


def _alike(
    greeted: Mapping[int, dict[str, Any]], config: FederationConfig
) -> dict[int, dict[str, Any]]:
    """Return the largest group of nodes whose data have the same form, as far as believed."""
    groups: dict[tuple[int, bool], dict[int, dict[str, Any]]] = {}
    for node, facts in greeted.items():
        if facts["name"] not in config.without:
            groups.setdefault((facts["inputs"], facts["classes"]), {})[node] = facts
    largest = max(groups.values(), key=len, default={})
    doubted = unbelieved(largest, config)
    return {node: facts for node, facts in largest.items() if node not in doubted}


def _not_ready(
    config: FederationConfig,
    ready: Mapping[int, Any],
    greeted: Mapping[int, dict[str, Any]],
    refused: Mapping[int, str],
) -> str:
    doubted = unbelieved(greeted, config)
    others = [
        doubted.get(node)
        or f"{facts['name']} has {facts['inputs']} inputs, classes = {facts['classes']}, unlike "
        "most"
        for node, facts in greeted.items()
        if node not in ready and facts["name"] not in config.without
    ]
    why = "".join(f"; {reason}" for reason in [*refused.values(), *others])
    return (
        f"{len(ready)} of {config.clients} nodes are ready after {config.ready_timeout:g} s: "
        f"start the others, raise federation.ready_timeout, or lower federation.clients{why}"
    )


def _greeted(
    arrival: Arrival, features: FeatureMap, batches: int, others: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return a node's greeting, or say why it cannot take part."""
    facts, node = arrival.facts, f"node {arrival.client}"
    if arrival.status != "answer":
        raise RefusedError(f"{node}: {arrival.reason}")
    if any(type(facts.get(key)) is not kind for key, kind in _FORM.items()):
        raise RefusedError(f"{node} sent a malformed greeting")
    if not NAME.fullmatch(facts["name"]):
        raise RefusedError(f"{node} has an invalid name: use letters, digits, . _ and -")
    node = f"{facts['name']} ({node})"
    if not batches <= facts["points"] <= _MOST_POINTS:
        raise RefusedError(f"{node} has {facts['points']} points for {batches} mini-batches")
    if not 1 <= facts["inputs"] <= _MOST_INPUTS:
        raise RefusedError(f"{node} has inputs = {facts['inputs']}, which is impossible")
    try:
        width = features.size(facts["inputs"])
    except InputError as error:  # images of another shape, or no images
        raise RefusedError(f"{node}: {error}") from None
    for key in ("inputs", "columns"):
        if not 1 <= facts[key] <= _MOST_NUMBERS // width:
            raise RefusedError(f"{node} has {key} = {facts[key]}, which is impossible")
    _check_features(node, features, facts)
    if any(other["name"] == facts["name"] for other in others.values()):
        raise RefusedError(f"{node} has the name of another node: give each its own")
    return facts


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
    transport: Transport,
    experiment: Experiment,
    members: Members,
    say: Say,
) -> Members:
    """Give the nodes of a resumed federation time to reconnect; return the members.

    Without keys, or with a new one, a node that was started again has another number: it is known
    by its name, if its data have the same form and size.
    """
    until = transport.now() + _RETURN
    greeted: set[int] = set()
    while missing := set(members.nodes) - (here := transport.nodes()):
        if transport.now() > until:
            say(f"continuing without {len(missing)} nodes, which may come back")
            break
        new = here - set(members.nodes) - greeted
        greeted |= new
        members = _met_again(transport, experiment, members, new, say)
        transport.sleep(0.5)
    return members


def _met_again(
    transport: Transport,
    experiment: Experiment,
    members: Members,
    new: set[int],
    say: Say,
) -> Members:
    """Return the members, with the new numbers of those that reconnected under another."""
    features = experiment.feature_map()
    job = job_of(experiment, members.key)
    greetings = {node: (node, {"job": asdict(job)}) for node in new}
    asked = transport.ask("hello", greetings, {}, _GREETING, largest=0) if new else {}
    nodes, here = list(members.nodes), transport.nodes()
    for arrival in transport.gather(asked, transport.now() + _GREETING):
        try:
            facts = _greeted(arrival, features, job.batches, {})
        except RefusedError as error:
            say(f"refused: {error}")
            continue
        index = members.names.index(facts["name"]) if facts["name"] in members.names else None
        if index is None or nodes[index] in here:  # a stranger, or somebody else's name
            continue
        form = (facts["points"], facts["inputs"], facts["classes"])
        if form != (members.claimed[index], members.inputs, members.classes):
            say(f"refused: {facts['name']} has other data than before")
            continue
        nodes[index] = arrival.client
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
        n_components=config.n_components,
        sigma=1.0 if kind == "encoder" else config.known_sigma,
        seed=experiment.seeds[0],
        batches=experiment.data.batches,
        columns=0 if members is None else members.columns,
        tiles=asdict(config.tiles()),
        scaling={} if members is None else members.scaling,
        encoder=encoder if kind == "encoder" else {},
    )
