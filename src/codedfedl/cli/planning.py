"""A plan: read the fleet, choose loads and a deadline, print them."""

from math import inf
from typing import Any

from codedfedl.cli.output import json_number, messages, print_json, progress, results, wrote
from codedfedl.cli.plan import OutputOptions, ParityOptions, WorkOptions
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import BUILT_IN, built_in_fleet, check_fleet_name
from codedfedl.fleet.devices import Fleet, Workload, read_fleet
from codedfedl.fleet.maximum import expected_maximum
from codedfedl.fleet.measured import MeasuredDelays, is_measured, read_measured
from codedfedl.fleet.server import Server
from codedfedl.planning.plan import Plan, plan
from codedfedl.report.fleet_tables import plan_view

__all__ = ["show_plan"]

Clients = Fleet | MeasuredDelays


def show_plan(
    fleet: str, parity: ParityOptions, work: WorkOptions, seed: int, output: OutputOptions
) -> None:
    """Plan a fleet as the options say, and print, draw or write the plan."""
    if _is_measured(fleet):
        _show(*_measured_plan(fleet, parity, work), output)
        return
    clients = _read(fleet, work, seed)
    if parity.within is not None:
        _plan_feature_map(clients, parity, work, output)
    elif parity.excess is not None:
        _plan_cold_start(clients, parity, work, output)
    elif parity.rounds is not None:
        _plan_for_rounds(clients, parity, work, output)
    else:
        server = _server(parity, clients)
        with progress("planning"):
            chosen = _plan(parity, clients, server)
        _show(clients, chosen, output)


def _plan(parity: ParityOptions, clients: Clients, server: Server | None) -> Plan:
    """Plan with a given number of parity rows, or with the number that suits the server."""
    redundancy = parity.redundancy
    if redundancy is None and parity.rows is None and server is None:
        redundancy = 0.1
    return plan(clients, redundancy, parity_rows=parity.rows, server=server)


def _server(parity: ParityOptions, clients: Fleet) -> Server | None:
    """Return the server as one more node, where its rate is given."""
    if parity.server_rate is not None:
        most = clients.total_points if parity.max_rows is None else parity.max_rows
        return Server(parity.server_rate, most, parity.server_alpha)
    if parity.max_rows is not None:
        raise InputError(
            f"--max-rows is {parity.max_rows} without a server: give --server-rate too"
        )
    return None


def _workload(work: WorkOptions) -> Workload:
    """Return what a point and a packet cost."""
    return Workload(work.features, work.labels, work.bits, work.packet_overhead)


def _image(work: WorkOptions) -> tuple[int, int, int] | None:
    """Return the image's shape; raise `InputError` if it is invalid."""
    if work.image is None:
        return None
    try:
        height, width, channels = map(int, work.image.split(","))
    except ValueError:
        height = width = channels = 0
    if min(height, width, channels) < 1 or height * width * channels != work.inputs:
        raise InputError(
            f"--image is {work.image!r}: must be HEIGHT,WIDTH,CHANNELS with a product of "
            f"{work.inputs}, as --inputs says; such as 28,28,1"
        )
    return height, width, channels


def _show(
    clients: Clients, chosen: Plan, output: OutputOptions, more: dict[str, Any] | None = None
) -> None:
    """Write, draw and print a plan; in JSON, with extra fields."""
    with progress("planning"):
        waiting = expected_maximum(clients, chosen.points)
    if chosen.parity_rows >= chosen.total_points:
        messages.print(
            f"note: {chosen.parity_rows:,} parity rows stand for all {chosen.total_points:,} "
            "points, so nobody is waited for and the clients process nothing: ask for less parity",
            soft_wrap=True,
        )
    if output.out is not None:
        chosen.write(output.out)
        wrote(output.out)
    if output.figure is not None:
        from codedfedl.report.figures import save_figure
        from codedfedl.report.fleet_figures import plan_figure

        save_figure(plan_figure(chosen, clients), output.figure)
        wrote(output.figure)
    if output.as_json:
        gain = waiting / chosen.deadline if chosen.deadline else inf
        extra = {"wait_for_all_s": json_number(waiting), "gain": json_number(gain)}
        print_json(chosen.document() | extra | (more or {}))
    else:
        results.print(plan_view(chosen, waiting))


def _measured_plan(name: str, parity: ParityOptions, work: WorkOptions) -> tuple[Clients, Plan]:
    """Plan with measured delays, which do not extend to other kinds of work."""
    needs_a_fleet = {"--server-rate": parity.server_rate, "--rounds": parity.rounds}
    needs_a_fleet |= {"--within": parity.within}
    _refuse(f"the measured delays of {name}", needs_a_fleet | {"--excess": parity.excess})
    _refuse_points(name, work.points)
    measured = read_measured(name)
    return measured, _plan(parity, measured, None)


def _others(parity: ParityOptions) -> dict[str, Any]:
    """Return the options that set the number of parity rows, except --rounds."""
    return {
        "--redundancy": parity.redundancy,
        "--rows": parity.rows,
        "--server-rate": parity.server_rate,
    }


def _plan_cold_start(
    clients: Fleet, parity: ParityOptions, work: WorkOptions, output: OutputOptions
) -> None:
    """Plan set-up and rounds of a cold start, and print them."""
    assert parity.excess is not None
    files = {"--out": output.out, "--figure": output.figure}
    _refuse("--excess", _others(parity) | {"--rounds": parity.rounds} | files)
    from codedfedl.cli.cold_plan import plan_from_cold

    document = plan_from_cold(
        clients, _workload(work), work.inputs, work.batches, parity.excess, quiet=output.as_json
    )
    if output.as_json:
        print_json(document)


def _plan_feature_map(
    clients: Fleet, parity: ParityOptions, work: WorkOptions, output: OutputOptions
) -> None:
    """Choose a feature map for a cold start within some hours, and print it."""
    hours, excess = parity.within, 0.2 if parity.excess is None else parity.excess
    assert hours is not None
    if not 0 < hours < inf:
        raise InputError(f"--within is {hours:g}: must be finite and above 0 hours")
    files = {"--out": output.out, "--figure": output.figure}
    _refuse("--within", _others(parity) | {"--rounds": parity.rounds} | files)
    from codedfedl.cli.cold_plan import plan_feature_map

    workload, image = _workload(work), _image(work)
    with progress("planning"):
        document = plan_feature_map(
            clients, workload, work.inputs, image, work.batches, excess, hours,
            quiet=output.as_json,
        )  # fmt: skip
    if output.as_json:
        print_json(document)


def _plan_for_rounds(
    clients: Fleet, parity: ParityOptions, work: WorkOptions, output: OutputOptions
) -> None:
    """Minimise the time of set-up and all rounds; show what the paper's rule costs."""
    rounds = parity.rounds
    assert rounds is not None
    _server(parity, clients)  # refuses --max-rows alone
    _refuse("--rounds", _others(parity))
    from codedfedl.cli.charged_plan import charged_plans, charged_view
    from codedfedl.planning.hours import Training, cheapest_plan

    workload = _workload(work)
    macs = work.inputs * workload.features
    training = Training(workload, macs, work.batches, rounds, work.step, mixing=0)
    with progress("planning"):
        chosen, _ = cheapest_plan(
            clients, rounds, lambda rows: training.setup_seconds(clients, rows)
        )
        charged = charged_plans(clients, workload, work.inputs, work.batches, rounds, work.step)
    _show(clients, chosen, output, {"charged": charged})
    if not output.as_json:
        results.print(charged_view(charged, rounds))


def _is_measured(name: str) -> bool:
    check_fleet_name(name)
    return name not in BUILT_IN and is_measured(name)


def _refuse_points(name: str, points: float | None) -> None:
    if points is None:
        return
    from codedfedl.io.tables import column_names

    if "points" in column_names(name):
        raise InputError(f"{name} has its own column 'points': leave --points out")


def _read(name: str, work: WorkOptions, seed: int) -> Fleet:
    if name in BUILT_IN:
        return built_in_fleet(name, work.clients, work.points, _workload(work), seed)
    if work.clients is not None:
        raise InputError(f"--clients is {work.clients}, but {name} has its own: leave it out")
    _refuse_points(name, work.points)
    return read_fleet(name, _workload(work), work.points)


def _refuse(chosen: str, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None:
            raise InputError(f"{name} and {chosen} do not go together: leave one out")
