"""What all parties of a noisy sum call the same: the ask that a mask is bound to, and two names."""

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.clipped import PrivateSum
from codedfedl.core.travel import work_to

__all__ = ["HELPER", "MASKED", "ask_digest"]

HELPER = "helper"
"""The role that a helper names when it is greeted."""

MASKED = "masked"
"""The one array of an answer under a mask."""


def ask_digest(work: PrivateSum, model: npt.NDArray[Any] | None) -> str:
    """Return the hash of what all clients are asked alike, for `Binding.ask`."""
    text = json.dumps(work_to(work.common), sort_keys=True).encode()
    sent = b"" if model is None else np.asarray(model, dtype="<f4").tobytes()
    return hashlib.sha256(hashlib.sha256(text).digest() + sent).hexdigest()
