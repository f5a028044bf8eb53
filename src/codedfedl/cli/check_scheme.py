"""`codedfedl check-scheme`: whether a scheme of your own does what runs rely on."""

from dataclasses import asdict

import typer

from codedfedl.cli.options import Json, Overrides
from codedfedl.cli.output import show


def check_scheme_command(scheme: str, *, overrides: Overrides = (), as_json: Json = False) -> None:
    """Check a scheme of your own in a second: it asks, repeats, resumes, refuses and learns.

    It plays twenty rounds of a small simulation. Exit code 1 means that runs cannot rely on the
    scheme; that it accepts senseless settings or does not learn is said, and fails nothing. With
    --set key=value, settings of the scheme.

    Parameters
    ----------
    scheme : MODULE:CLASS
        Your scheme, whose module is in this folder or installed.
    """
    from codedfedl.runs.documents import parse_overrides
    from codedfedl.simulation.scheme_checks import check_scheme

    checks = check_scheme(scheme, parse_overrides(overrides))
    rows = [
        {
            "check": each.name,
            "result": "yes" if each.holds else "NO" if each.required else "no",
            "remark": each.remark,
        }
        for each in checks
    ]
    show(as_json, {"scheme": scheme, "checks": [asdict(each) for each in checks]}, rows)
    if not all(each.holds for each in checks if each.required):
        raise typer.Exit(1)
