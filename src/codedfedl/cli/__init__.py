"""The command line: `codedfedl`."""

import sys
import traceback

import typer

from codedfedl import __version__
from codedfedl.cli.federate import federate
from codedfedl.cli.fit import fit_command
from codedfedl.cli.plan import plan_command
from codedfedl.cli.reproduce import reproduce_command
from codedfedl.cli.simulate import demo_command, report_command, simulate_command
from codedfedl.cli.sweep import sweep_command
from codedfedl.errors import InputError

__all__ = ["app", "main"]

app = typer.Typer(
    epilog="Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("plan")(plan_command)
app.command("fit")(fit_command)
app.command("simulate")(simulate_command)
app.command("sweep")(sweep_command)
app.command("report")(report_command)
app.command("reproduce")(reproduce_command)
app.command("demo")(demo_command)
app.add_typer(federate, name="federate")


@app.callback(invoke_without_command=True)
def tour(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback with every error."),
) -> None:
    """Straggler-proof federated learning at the edge.

    Begin with `codedfedl demo`: all schemes on embedded data, and a report. `codedfedl plan paper`
    says how long to wait in each round and who does how much; give it a file of your own fleet,
    which `codedfedl fit` makes of measured times. `codedfedl simulate` runs your own experiment,
    and `codedfedl reproduce table1` the paper's.
    `codedfedl federate` trains on real clients; `codedfedl federate local` tries it here.
    """
    if version:
        typer.echo(f"codedfedl {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; bad input ends in one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        print(f"codedfedl: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"codedfedl: {error}", file=sys.stderr)
        sys.exit(1)
