"""`codedfedl federate chaos`: whatever is killed, no round is lost and none is played twice."""

import time
from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import Json
from codedfedl.cli.output import messages, print_json, results
from codedfedl.errors import InputError

__all__ = ["chaos_command"]

_PATIENCE = 600.0  # seconds that the run may take after the last fault


def chaos_command(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long to inject faults.")] = 10.0,
    clients: Annotated[int, typer.Option(min=2, help="Nodes.")] = 3,
    deadline: Annotated[float, typer.Option(min=1.0, help="Seconds per round.")] = 12.0,
    scheme: Annotated[str, typer.Option(help="A scheme.")] = "coded",
    seed: Annotated[int, typer.Option(help="Seed of the faults.")] = 0,
    out: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/chaos"),
    as_json: Json = False,
) -> None:
    """Kill and stop nodes, server app and SuperLink of a local federation at random.

    Afterwards every round must have taken place exactly once, and the replay must give the same
    model. Exits with 1 where that does not hold.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.cli.federating import local_experiment
    from codedfedl.cli.following import ended_by_signals
    from codedfedl.data import load_dataset
    from codedfedl.federate.flower.chaos import Chaos
    from codedfedl.federate.flower.local import LocalFederation, local_keys
    from codedfedl.federate.shards import write_shards
    from codedfedl.runs.directory import RunDirectory
    from codedfedl.runs.journal import Journal
    from codedfedl.simulation.replay import replay

    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: choose another --out")
    folder, rounds = out.resolve() / "local", max(3, int(60 * minutes / deadline))
    given = {
        "federation.rounds": rounds,
        "federation.clients": clients,
        "federation.deadline": deadline,
        "federation.test": str(folder / "data" / "test.npz"),
        "fleet.name": str(out.resolve() / "fleet.csv"),
        "federation.probes": 2,
    }
    experiment = local_experiment({"name": scheme}, given, {})
    directory = RunDirectory(out)
    directory.open(experiment, resume=False)
    shards = write_shards(experiment, load_dataset("digits"), folder / "data")
    keys, began = local_keys(folder / "keys", clients), time.monotonic()

    def say(sentence: str) -> None:
        messages.print(f"{time.monotonic() - began:6.1f} s  {sentence}", soft_wrap=True)

    with ended_by_signals(), LocalFederation(folder, shards, keys=keys) as local:
        chaos = Chaos(local, directory, seed, say)
        chaos.play(60 * minutes, _PATIENCE)
    played = [record.round for record in Journal(out).records() if not record.is_setup]
    once, found = played == list(range(rounds)), replay(directory)
    document = {
        "run": str(out),
        "seconds": time.monotonic() - began,
        "faults": dict(chaos.faults),
        "rounds": len(played),
        "each_once": once,
        "answers": found.answers,
        "missed": found.missed,
        "replay_difference": found.difference,
    }
    if as_json:
        print_json(document)
    else:
        for name, value in document.items():
            results.print(f"{name.replace('_', ' ')}: {value}")
    if not once or not found.same:
        messages.print("error: rounds were lost or repeated, or the model differs")
        raise typer.Exit(1)
