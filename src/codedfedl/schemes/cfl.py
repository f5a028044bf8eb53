"""`cfl`: the paper's predecessor, `coded` on the raw points."""

from dataclasses import dataclass, replace
from typing import ClassVar

from codedfedl.core.protocol import Info
from codedfedl.learning.features import Identity
from codedfedl.schemes.coded import Coded


@dataclass(frozen=True)
class CFL(Coded):
    """Coded federated learning for linear regression."""

    info: ClassVar[Info] = replace(Coded.info, name="cfl", features=Identity(), featured=False)
