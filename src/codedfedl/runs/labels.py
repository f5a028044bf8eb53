"""Labels are for people: each must tell its setting from the others in the same run."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["distinct_labels", "flattened"]


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def distinct_labels(labels: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the labels; where two are the same, with the values in which their settings differ.

    Examples
    --------
    >>> distinct_labels(["coded 10%", "coded 10%"], [{"redundancy": 0.1}, {"redundancy": 0.1001}])
    ['coded 10% (redundancy 0.1)', 'coded 10% (redundancy 0.1001)']
    """
    places: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    return [
        f"{label}{_difference(flattened(settings[place]), [settings[k] for k in places[label]])}"
        for place, label in enumerate(labels)
    ]


def _difference(mine: Mapping[str, Any], all_settings: Sequence[Mapping[str, Any]]) -> str:
    if len(all_settings) == 1:
        return ""
    others = [flattened(settings) for settings in all_settings]
    keys = dict.fromkeys(key for other in others for key in other)
    differing = [key for key in keys if any(other.get(key) != mine.get(key) for other in others)]
    words = [
        f"{key.rpartition('.')[2].replace('_', ' ')} {mine.get(key, 'by default')}"
        for key in differing
    ]
    return f" ({', '.join(words)})"
