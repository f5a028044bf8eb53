"""`codedfedl plan`: from a fleet's delays to loads, a deadline and parity."""

from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from codedfedl.cli.cold_plan import plan_from_cold
from codedfedl.cli.output import json_number, print_json, progress, results, wrote
from codedfedl.errors import InputError
from codedfedl.fleet.costs import Setup
from codedfedl.fleet.delays import DelaysWithPoints, expected_maximum
from codedfedl.fleet.devices import Fleet, Workload, read_fleet
from codedfedl.fleet.measured import MeasuredDelays, is_measured, read_measured
from codedfedl.fleet.paper import paper_fleet
from codedfedl.io.files import FIGURE_SUFFIXES, TABLE_SUFFIXES, check_destination
from codedfedl.io.tables import column_names
from codedfedl.planning.plan import Plan, Server, cheapest_plan, plan
from codedfedl.report.tables import plan_view

__all__ = ["plan_command"]

PARITY, WORK = "How much parity (one of these)", "What a device file's clients compute"


def plan_command(
    fleet: Annotated[
        str, typer.Argument(help="A fleet or device file (.csv, .parquet), or 'paper'.")
    ],
    redundancy: Annotated[
        float | None,
        typer.Option(
            help="Parity rows as a fraction of all points, in (0, 1); 0.1 if nothing else is said.",
            rich_help_panel=PARITY,
        ),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Parity rows.", rich_help_panel=PARITY)] = None,
    server_rate: Annotated[
        float | None,
        typer.Option(
            help="Choose the rows: the server as one more node, at this many rows per second.",
            rich_help_panel=PARITY,
        ),
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(
            help="The most rows that the server may hold; as many as there are points if not said.",
            rich_help_panel=PARITY,
        ),
    ] = None,
    server_alpha: Annotated[
        float, typer.Option(help="The server's α.", rich_help_panel=PARITY)
    ] = 2.0,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Choose the rows: least total time of set-up and this many rounds.",
            rich_help_panel=PARITY,
        ),
    ] = None,
    excess: Annotated[
        float | None,
        typer.Option(
            help="Plan a cold start with coded-newton instead: wanted relative excess of the "
            "objective over its optimum, such as 0.2.",
            rich_help_panel=PARITY,
        ),
    ] = None,
    points: Annotated[
        float | None,
        typer.Option(
            help="Points per round of every client, where the file has no such column.",
            rich_help_panel=WORK,
        ),
    ] = None,
    features: Annotated[
        int, typer.Option(help="Features of the model (q).", rich_help_panel=WORK)
    ] = 2000,
    labels: Annotated[int, typer.Option(help="Label columns (c).", rich_help_panel=WORK)] = 10,
    bits: Annotated[int, typer.Option(help="Bits a number.", rich_help_panel=WORK)] = 32,
    packet_overhead: Annotated[
        float, typer.Option(help="Share that the protocol adds to a packet.", rich_help_panel=WORK)
    ] = 0.1,
    inputs: Annotated[
        int,
        typer.Option(
            help="Numbers in a raw point, for --rounds and --excess.", rich_help_panel=WORK
        ),
    ] = 784,
    batches: Annotated[
        int, typer.Option(help="Mini-batches, for --rounds and --excess.", rich_help_panel=WORK)
    ] = 5,
    seed: Annotated[int, typer.Option(help="Of the paper's fleet.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write a row per client (.parquet or .csv).")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the plan (.png, .svg or .pdf).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Choose how long each round waits and how much each client does.

    FLEET has the columns client, points, rate (points per second), alpha, packet_time (seconds)
    and erasure, and may have packet_time_up, erasure_up, overhead (seconds a round) and
    availability. `codedfedl fit` makes such a file, or one of measured delays (client, points,
    per_point, fixed), which can be planned as well. A device file has client, mac_rate, bit_rate,
    alpha and erasure instead, and may have points.

    Examples: `codedfedl plan paper`, `codedfedl plan my.csv --redundancy 0.2 --figure plan.png`,
    `codedfedl plan my.csv --server-rate 1000 --json`, `codedfedl plan paper --excess 0.2`.
    """
    if out is not None:
        check_destination(out, TABLE_SUFFIXES)
        if out.resolve() == Path(fleet).resolve():
            raise InputError(f"--out {out} is the fleet file itself: choose another")
    if figure is not None:
        check_destination(figure, FIGURE_SUFFIXES)
    workload = Workload(features, labels, bits, packet_overhead)
    if _is_measured(fleet):
        _refuse(f"the measured delays of {fleet}", _needs_a_fleet(server_rate, rounds, excess))
        _refuse_points(fleet, points)
        measured = read_measured(fleet)
        _show(measured, _plan(measured, redundancy, rows, None), out, figure, as_json)
        return
    clients = _read(fleet, workload, points, seed)
    if excess is not None:
        others = {"--redundancy": redundancy, "--rows": rows, "--server-rate": server_rate}
        _refuse("--excess", others | {"--rounds": rounds, "--out": out, "--figure": figure})
        document = plan_from_cold(clients, workload, inputs, batches, excess, quiet=as_json)
        if as_json:
            print_json(document)
        return
    server = _server(server_rate, server_alpha, max_rows, clients)
    with progress("planning"):
        if rounds is None:
            chosen = _plan(clients, redundancy, rows, server)
        else:
            others = {"--redundancy": redundancy, "--rows": rows, "--server-rate": server_rate}
            _refuse("--rounds", others)
            setup = Setup(inputs, batches)
            chosen, _ = cheapest_plan(
                clients, rounds, lambda u: setup.seconds(clients, workload, u)
            )
    _show(clients, chosen, out, figure, as_json)


def _show(
    clients: Fleet | DelaysWithPoints[MeasuredDelays],
    chosen: Plan,
    out: Path | None,
    figure: Path | None,
    as_json: bool,
) -> None:
    with progress("planning"):
        waiting = expected_maximum(clients, clients.points)
    if out is not None:
        chosen.write(out)
        wrote(out)
    if figure is not None:
        from codedfedl.report.figures import plan_figure, save_figure

        save_figure(plan_figure(chosen, clients), figure)
        wrote(figure)
    if as_json:
        gain = waiting / chosen.deadline if chosen.deadline else inf
        extra = {"wait_for_all_s": json_number(waiting), "gain": json_number(gain)}
        print_json(chosen.document() | extra)
    else:
        results.print(plan_view(chosen, waiting))


def _is_measured(name: str) -> bool:
    return name != "paper" and is_measured(name)


def _needs_a_fleet(
    server_rate: float | None, rounds: int | None, excess: float | None
) -> dict[str, float | None]:
    return {"--server-rate": server_rate, "--rounds": rounds, "--excess": excess}


def _refuse_points(name: str, points: float | None) -> None:
    if points is not None and "points" in column_names(name):
        raise InputError(f"{name} has its own column 'points': leave --points out")


def _read(name: str, workload: Workload, points: float | None, seed: int) -> Fleet:
    if name == "paper":
        return paper_fleet(400 if points is None else points, workload, seed=seed)
    _refuse_points(name, points)
    return read_fleet(name, workload, points)


def _server(
    rate: float | None, alpha: float, max_rows: int | None, clients: Fleet
) -> Server | None:
    if rate is not None:
        return Server(rate, clients.total_points if max_rows is None else max_rows, alpha)
    if max_rows is not None:
        raise InputError(f"--max-rows is {max_rows} without a server: say --server-rate too")
    return None


def _plan(
    clients: Fleet | DelaysWithPoints[MeasuredDelays],
    redundancy: float | None,
    rows: int | None,
    server: Server | None,
) -> Plan:
    if redundancy is None and rows is None and server is None:
        redundancy = 0.1
    return plan(clients, redundancy, parity_rows=rows, server=server)


def _refuse(chosen: str, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None:
            raise InputError(f"{name} and {chosen} do not go together: leave one out")
