"""Schemes: one file each. A new one is a new file here with a class that has a `name`."""

import importlib
import pkgutil
from dataclasses import fields
from typing import Any

from codedfedl.core.protocol import Scheme
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.learning.codes import LEAST_MIXING

__all__ = ["SCHEMES", "Scheme", "make_scheme", "scheme_for", "settings_of"]


def _found() -> dict[str, type[Any]]:
    schemes = {}
    for module in pkgutil.iter_modules(__path__):
        members = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for exported in members["__all__"]:
            member = members[exported]
            if isinstance(getattr(member, "name", None), str):
                schemes[member.name] = member
    return schemes


SCHEMES = _found()
"""Every scheme by its name."""


def settings_of(name: str) -> list[str]:
    """Return the names of a scheme's settings."""
    return [field.name for field in fields(SCHEMES[name])]


def make_scheme(name: str, settings: dict[str, Any]) -> Scheme:
    """Return a scheme by name, with its settings."""
    if name not in SCHEMES:
        raise InputError(f"scheme {name!r} is unknown: {nearest(name, list(SCHEMES))}")
    known = settings_of(name)
    for key in settings:
        if key not in known:
            hint = nearest(key, known) if known else "it has no settings"
            raise InputError(f"scheme {name!r} has no setting {key!r}: {hint}")
    try:
        scheme: Scheme = SCHEMES[name](**settings)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
        raise InputError(f"scheme {name!r} cannot have {given}: {error}") from None
    return scheme


def scheme_for(name: str, settings: dict[str, Any], most_points: int, rows: int = 1) -> Scheme:
    """Return a scheme by name; where `mixing` is not given, it suits clients with few points.

    A client with fewer points than `mixing` sends no parity. Where not even the client with
    `most_points` could send `rows` rows, mixing is a quarter of its points, and the scheme warns
    that such rows are close to raw data.
    """
    make_scheme(name, settings)  # which refuses a name or a setting that it does not know
    if "mixing" in settings_of(name) and most_points < rows * LEAST_MIXING:
        settings = {"mixing": max(1, most_points // 4)} | settings
    return make_scheme(name, settings)
