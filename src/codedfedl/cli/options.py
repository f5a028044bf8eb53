"""Options that belong together, as one parameter of a command."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

__all__ = ["grouped"]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command have dataclasses as parameters: each of their fields becomes an option.

    A field is annotated as a parameter of a command would be, ``Annotated[…, typer.Option(…)]``.
    On the command line, the options stand where their group does.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            flat += _options(groups[parameter.name])
        else:
            flat.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(command)
    def flattened(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **given)

    # A parameter without a default may follow one that has one: all are given by name.
    keywords = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in flat]
    flattened.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    flattened.__annotations__ = {option.name: option.annotation for option in flat}
    return flattened


def _options(group: Any) -> list[inspect.Parameter]:
    """Return the fields of a dataclass as parameters."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.signature(group).parameters[field.name].replace(annotation=hints[field.name])
        for field in fields(group)
    ]
