"""The command line: `codedfedl`."""

import sys
import traceback
from typing import NoReturn

import click
import typer

from codedfedl import __version__
from codedfedl.cli.audit import audit_command
from codedfedl.cli.check_scheme import check_scheme_command
from codedfedl.cli.federate import federate_app
from codedfedl.cli.fit import fit_command
from codedfedl.cli.fleet import fleet_command
from codedfedl.cli.new import new_command
from codedfedl.cli.options import add_commands, documented
from codedfedl.cli.plan import plan_command
from codedfedl.cli.predict import export_command, predict_command
from codedfedl.cli.report import report_command
from codedfedl.cli.reproduce import reproduce_command
from codedfedl.cli.simulate import demo_command, simulate_command
from codedfedl.cli.sweep import sweep_command
from codedfedl.errors import InputError
from codedfedl.io.names import printable

app = typer.Typer(
    epilog="Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. Commands take --json for "
    "scripts and print no colours when piped; NO_COLOR is respected.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

add_commands(
    app,
    {
        "Start here": {"demo": demo_command, "new": new_command},
        "Plan a fleet": {"plan": plan_command, "fit": fit_command, "fleet": fleet_command},
        "Simulate, on a virtual clock": {
            "simulate": simulate_command,
            "sweep": sweep_command,
            "report": report_command,
            "reproduce": reproduce_command,
            "audit": audit_command,
            "check-scheme": check_scheme_command,
        },
        "Use a model": {"predict": predict_command, "export": export_command},
    },
)
app.add_typer(federate_app, name="federate", rich_help_panel="Train on real clients")


@app.callback(invoke_without_command=True)
@documented
def tour(*, version: bool = False, debug: bool = False) -> None:
    r"""Straggler-proof federated learning at the edge: nobody waits for the slowest.

    \b
    A tour, in the order in which people need it:
      codedfedl demo                      all schemes on embedded data; a report
      codedfedl plan paper                how long rounds wait, who does what
      codedfedl fit times.csv             your own fleet, from measured times
      codedfedl fleet --help              a fleet from public traces
      codedfedl plan fleet.csv            its plan
      codedfedl sweep --fleet fleet.csv   which redundancy is best for it
      codedfedl new my.toml               an experiment on your own table
      codedfedl simulate my.toml          your own data, fleet and schemes
      codedfedl report RUN RUN            runs compared, in one page
      codedfedl audit RUN                 does what leaves reveal a record?
      codedfedl predict MODEL DATA        predictions with a run's model
      codedfedl reproduce table1          the paper's Table 1 beside ours
      codedfedl federate local            real processes and sockets, here

    Parameters
    ----------
    version
        Print the version and stop.
    debug
        Show a traceback with every error.
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
