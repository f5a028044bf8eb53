"""Schemes: a file for each or for a family of them, and third-party schemes.

A scheme is found by name. A built-in one is a file here with a class that has a `name`; another is
``module:Class``, or the name of an entry point of the group ``codedfedl.schemes``.
"""

import importlib
import pkgutil
from dataclasses import fields
from importlib.metadata import entry_points
from inspect import isabstract
from math import inf
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args

from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import Info, Scheme
from codedfedl.errors import InputError
from codedfedl.io.names import member_of, nearest, shortened
from codedfedl.learning.codes import LEAST_MIXING
from codedfedl.learning.messages import MAX_BITS, MIN_BITS, MODEL_BITS

__all__ = [
    "RENAMED_SETTINGS",
    "SCHEMES",
    "Scheme",
    "make_scheme",
    "scheme_class",
    "scheme_for",
    "settings_of",
]


def _built_in() -> dict[str, type[Scheme]]:
    schemes = {}
    for module in pkgutil.iter_modules(__path__):
        file = importlib.import_module(f"{__name__}.{module.name}")
        for member in vars(file).values():
            is_scheme = isinstance(member, type) and issubclass(member, Scheme)
            if is_scheme and member.__module__ == file.__name__ and not isabstract(member):
                schemes[member.info.name] = member
    return schemes


SCHEMES = _built_in()
"""Every built-in scheme by its name."""

RENAMED_SETTINGS: dict[str, dict[str, str]] = {
    "coded-newton": {"round_deadline": "deadline"},
    "sketch-solve": {"deadline": "setup_deadline"},
}
"""Former names of settings with the current ones, by scheme."""

_FORMER_METHODS = ("within", "plan", "facts", "privacy")  # Of the protocol of version 0.2.


def scheme_class(name: str) -> type[Scheme]:
    """Return the class of a scheme: a built-in name, an entry point, or ``module:Class``."""
    if name in SCHEMES:
        return SCHEMES[name]
    others = entry_points(group="codedfedl.schemes")
    if name in others.names:
        return _checked(name, others[name].load())
    if ":" not in name:
        known = [*SCHEMES, *others.names]
        raise InputError(f"scheme {name!r} is unknown: {nearest(name, known)}")
    return _checked(name, member_of(name, "scheme"))


def _checked(name: str, loaded: Any) -> type[Scheme]:
    """Refuse what is not a scheme, or could keep state where no checkpoint would find it."""
    if not isinstance(loaded, type) or not issubclass(loaded, Scheme):
        raise InputError(f"scheme {name!r} is not a subclass of codedfedl.Scheme: derive it")
    parameters = vars(loaded).get("__dataclass_params__")  # its own: the base class has some
    if parameters is None or not parameters.frozen:
        raise InputError(
            f"scheme {name!r} is not a frozen dataclass: decorate it with "
            "@dataclass(frozen=True), and keep what it learns in its state"
        )
    former = [method for method in _FORMER_METHODS if callable(getattr(loaded, method, None))]
    if former or isinstance(vars(loaded).get("name"), str):
        raise InputError(
            f"scheme {name!r} defines {(former or ['name'])[0]!r} as version 0.2 did: set "
            "info = Info(name, disclosure), return plan, facts and privacy from describe, and take "
            "limits in start; see docs/tutorials/own-scheme.md"
        )
    if not isinstance(getattr(loaded, "info", None), Info):
        raise InputError(
            f"scheme {name!r} has no info: set info = Info(name, disclosure) as a class variable"
        )
    return loaded


def settings_of(name: str) -> list[str]:
    """Return the names of a scheme's settings, its own ones first."""
    made = scheme_class(name)
    common = [field.name for field in fields(Scheme)]
    sends = made.info.disclosure <= {Disclosure.GRADIENTS, Disclosure.MODELS, Disclosure.COUNTS}
    shared = ["message_bits", "server_step"] if sends and made.info.descends else []
    return [f.name for f in fields(made) if f.name not in common] + shared


def make_scheme(name: str, settings: dict[str, Any], *, secure: bool = False) -> Scheme:
    """Return a scheme by name, with its settings; on secure sums, if that is wanted."""
    made = scheme_class(name)
    known, renamed = settings_of(name), RENAMED_SETTINGS.get(made.info.name, {})
    for key in settings:
        if key not in known:
            hint = nearest(key, known) if known else "it has no settings"
            hint = f"it is now {renamed[key]!r}" if key in renamed else hint
            raise InputError(f"scheme {name!r} has no setting {key!r}: {hint}")
    _check_kinds(made, settings, least=0.0 if name in SCHEMES else -inf)
    _check_shared(made.info.name, settings, secure=secure)
    try:
        scheme: Scheme = made(**settings, secure=secure)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
        raise InputError(f"scheme {name!r} cannot have {given}: {error}") from None
    return scheme


def _check_shared(name: str, settings: dict[str, Any], *, secure: bool) -> None:
    """Refuse values of settings that all schemes of gradients or models have."""
    bits, step = settings.get("message_bits", MODEL_BITS), settings.get("server_step")
    if bits != MODEL_BITS and not MIN_BITS <= bits <= MAX_BITS:
        raise InputError(
            f"{name}.message_bits is {bits}: must be 32, or from {MIN_BITS} to {MAX_BITS}"
        )
    if bits != MODEL_BITS and secure:
        raise InputError(
            f"{name}.message_bits is {bits}, and a secure sum has 32: leave one of them out"
        )
    if step is not None and not 0 < step < inf:
        raise InputError(f"{name}.server_step is {step:g}: must be finite and above 0")


_KINDS: dict[Any, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a word"),
    dict[str, Any]: (dict, "a table of settings"),
}


def _check_kinds(made: type[Scheme], settings: dict[str, Any], least: float) -> None:
    """Refuse a word for a number and the like, and numbers below the least.

    Annotations of other kinds allow anything.
    """
    for field in fields(made):
        allowed = (field.type,) if field.type in _KINDS else get_args(field.type) or (field.type,)
        known = [_KINDS[kind] for kind in allowed if kind in _KINDS]
        if field.name not in settings or len(known) < len(allowed) - (NoneType in allowed):
            continue
        value = settings[field.name]
        fits = any(
            isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            for kind, _ in known
        )
        if fits and isinstance(value, Real):
            fits = bool(value >= least)  # type: ignore[operator]  # NaN is not
        if not fits and not (value is None and NoneType in allowed):
            words = " or ".join(word for _, word in known)
            bound = " from 0" if least == 0 and isinstance(value, Real) else ""
            raise InputError(
                f"{made.info.name}.{field.name} is {shortened(value)}: must be {words}{bound}"
            )


def scheme_for(
    name: str, settings: dict[str, Any], most_points: int, rows: int = 1, *, secure: bool = False
) -> Scheme:
    """Return a scheme by name; by default `mixing` suits clients with few points.

    A client with fewer points than `mixing` sends no parity. If not even the client with
    `most_points` could send `rows` rows, mixing is a quarter of its points, and the scheme warns
    that such rows are close to raw data.
    """
    make_scheme(name, settings)  # raises InputError for an unknown name or setting
    if "mixing" in settings_of(name) and most_points < rows * LEAST_MIXING:
        settings = {"mixing": max(1, most_points // 4)} | settings
    return make_scheme(name, settings, secure=secure)
