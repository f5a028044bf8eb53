"""The command line: `codedfedl`."""

import sys
import traceback
from typing import NoReturn

import click
import typer

from codedfedl import __version__
from codedfedl.cli.audit import audit_command
from codedfedl.cli.federate import federate
from codedfedl.cli.fit import fit_command
from codedfedl.cli.plan import plan_command
from codedfedl.cli.predict import export_command, predict_command
from codedfedl.cli.reproduce import reproduce_command
from codedfedl.cli.simulate import demo_command, report_command, simulate_command
from codedfedl.cli.sweep import sweep_command
from codedfedl.errors import InputError

__all__ = ["app", "main"]

app = typer.Typer(
    epilog="Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. Commands take --json for "
    "scripts and are quiet when piped; NO_COLOR is respected.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_START, _PLAN = "Start here", "Plan a fleet"
_SIMULATE, _REAL = "Simulate, on a virtual clock", "Train on real clients"
_USE = "Use a model"
app.command("demo", rich_help_panel=_START)(demo_command)
app.command("plan", rich_help_panel=_PLAN)(plan_command)
app.command("fit", rich_help_panel=_PLAN)(fit_command)
app.command("simulate", rich_help_panel=_SIMULATE)(simulate_command)
app.command("sweep", rich_help_panel=_SIMULATE)(sweep_command)
app.command("report", rich_help_panel=_SIMULATE)(report_command)
app.command("reproduce", rich_help_panel=_SIMULATE)(reproduce_command)
app.command("audit", rich_help_panel=_SIMULATE)(audit_command)
app.command("predict", rich_help_panel=_USE)(predict_command)
app.command("export", rich_help_panel=_USE)(export_command)
app.add_typer(federate, name="federate", rich_help_panel=_REAL)


@app.callback(invoke_without_command=True)
def tour(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback with every error."),
) -> None:
    r"""Straggler-proof federated learning at the edge: nobody waits for the slowest.

    \b
    A tour, in the order in which people need it:
      codedfedl demo                      all schemes on embedded data; a report
      codedfedl plan paper                how long a round waits, who does what
      codedfedl fit times.csv             your own fleet, from measured times
      codedfedl plan fleet.csv            its plan
      codedfedl sweep --fleet fleet.csv   which redundancy is best for it
      codedfedl simulate my.toml          your own data, fleet and schemes
      codedfedl report RUN RUN            runs compared, in one page
      codedfedl audit RUN                 can a record be told from what leaves?
      codedfedl predict MODEL DATA        predictions with a run's model
      codedfedl reproduce table1          the paper's Table 1 beside ours
      codedfedl federate local            real processes and sockets, here
    """
    if version:
        typer.echo(f"codedfedl {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; whatever goes wrong ends in one line, and code 2 says it was the input."""
    debug = "--debug" in sys.argv  # wherever it stands
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
        _fail(f"{what}. This is a bug: say --debug for a traceback, and report it", 1, debug)


def _fail(sentence: str, code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    print(f"codedfedl: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)
