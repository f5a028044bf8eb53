"""Objects of the user's own modules, named as ``module:member``."""

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["member_of"]


def member_of(name: str) -> Any:
    """Return what ``module:member`` names, or None where the module has no such member.

    The module lies in the current folder or is installed; one that cannot be imported raises
    ImportError or ValueError.
    """
    module, _, member = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # a file beside the experiment need not be installed
    try:
        return getattr(importlib.import_module(module), member, None)
    finally:
        with suppress(ValueError):
            sys.path.remove(here)
