"""`cfl`: the paper's predecessor, `coded` on the raw points."""

from dataclasses import dataclass
from typing import ClassVar

from codedfedl.learning.features import FeatureMap, Identity
from codedfedl.schemes.coded import Coded

__all__ = ["CFL"]


@dataclass(frozen=True)
class CFL(Coded):
    """Coded federated learning for linear regression."""

    name: ClassVar[str] = "cfl"
    featured: ClassVar[bool] = False
    features: ClassVar[FeatureMap | None] = Identity()
