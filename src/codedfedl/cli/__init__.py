"""The command line: `codedfedl`."""

import sys
import traceback
from typing import ClassVar, NoReturn

import click
import typer

from codedfedl import __version__
from codedfedl.cli.lazy import LazyCommand, LazyGroup
from codedfedl.errors import InputError
from codedfedl.io.names import printable

__all__ = ["Commands", "app", "main"]

_START, _PLAN = "Start here", "Plan a fleet"
_SIMULATE, _REAL = "Simulate, on a virtual clock", "Train on real clients"
_USE = "Use a model"


class Commands(LazyGroup):
    """Every command, in the order in which people need them."""

    lazy: ClassVar[dict[str, LazyCommand]] = {
        "demo": LazyCommand(
            "simulate:demo_command",
            _START,
            "Run all schemes on embedded data and ten unequal clients, and write a report.",
        ),
        "plan": LazyCommand(
            "plan:plan_command",
            _PLAN,
            "Choose how long each round waits and how much each client does.",
        ),
        "fit": LazyCommand(
            "fit:fit_command",
            _PLAN,
            "Estimate a fleet from measured times, with intervals, and test the fit.",
        ),
        "fleet": LazyCommand(
            "fleet:fleet_command",
            _PLAN,
            "Draw a fleet of real devices from public traces: FedScale's, and mahimahi's.",
        ),
        "simulate": LazyCommand(
            "simulate:simulate_command",
            _SIMULATE,
            "Run an experiment on a virtual clock: schemes, seeds, a fleet and data, from a TOML "
            "file.",
        ),
        "sweep": LazyCommand(
            "sweep:sweep_command",
            _SIMULATE,
            "Run every combination of some settings, and find the best.",
        ),
        "report": LazyCommand(
            "report:report_command",
            _SIMULATE,
            "Write the report of a run again, or one report that compares several runs.",
        ),
        "reproduce": LazyCommand(
            "reproduce:reproduce_command",
            _SIMULATE,
            "Reproduce the paper's figures and Table 1, and the experiments that go beyond them.",
        ),
        "audit": LazyCommand(
            "audit:audit_command",
            _SIMULATE,
            "Attack what the server receives, to test whether a record was used.",
        ),
        "predict": LazyCommand(
            "predict:predict_command",
            _USE,
            "Predict with a run's model, and score it if the data have labels.",
        ),
        "export": LazyCommand(
            "predict:export_command",
            _USE,
            "Export a model to ONNX: a graph from points to scores.",
        ),
        "federate": LazyCommand("federate:federate", _REAL, "Train on real clients, on Flower."),
    }


app = typer.Typer(
    cls=Commands,
    epilog="Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. Commands take --json for "
    "scripts and print no colours when piped; NO_COLOR is respected.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def tour(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback with every error."),
) -> None:
    r"""Straggler-proof federated learning at the edge: nobody waits for the slowest.

    \b
    A tour, in the order in which people need it:
      codedfedl demo                      all schemes on embedded data; a report
      codedfedl plan paper                how long rounds wait, who does what
      codedfedl fit times.csv             your own fleet, from measured times
      codedfedl fleet --help              a fleet from public traces
      codedfedl plan fleet.csv            its plan
      codedfedl sweep --fleet fleet.csv   which redundancy is best for it
      codedfedl simulate my.toml          your own data, fleet and schemes
      codedfedl report RUN RUN            runs compared, in one page
      codedfedl audit RUN                 does what leaves reveal a record?
      codedfedl predict MODEL DATA        predictions with a run's model
      codedfedl reproduce table1          the paper's Table 1 beside ours
      codedfedl federate local            real processes and sockets, here
    """
    if version:
        typer.echo(f"codedfedl {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; any failure is reported in one line, with exit code 2 for bad input."""
    debug = "--debug" in sys.argv  # at any position
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        sys.exit(app(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as help_:
        help_.show()
        sys.exit(2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "codedfedl"
        _fail(f"{error.format_message()} See {command} --help", 2, debug)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except InputError as error:
        _fail(str(error), 2, debug)
    except OSError as error:
        _fail(str(error), 1, debug)
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _fail(f"{what}. This is a bug: use --debug for a traceback, and report it", 1, debug)


def _fail(sentence: str, code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    print(f"codedfedl: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    sys.exit(code)
