"""Side doors of a private run: what would read the data outside its privacy budget is refused."""

from codedfedl.data import Dataset
from codedfedl.errors import InputError
from codedfedl.runs.config import Experiment, SchemeConfig

__all__ = ["refuse_own_scale", "refuse_side_doors"]


def refuse_side_doors(experiment: Experiment, scheme: SchemeConfig, dataset: Dataset) -> None:
    """Refuse a private setting that depends on the data by more than its sums."""
    drawn = (scheme.features or experiment.features.kind) != "encoder"
    if drawn and experiment.features.sigma == "auto":
        raise InputError(
            "features.sigma is 'auto', which is computed from the data outside the privacy "
            f"budget: give a number where the scheme is {scheme.name!r}, such as the paper's 5.0"
        )
    if experiment.training.objective:
        raise InputError(
            "training.objective is true, which records the objective on the training points "
            f"outside the privacy budget: leave it out where the scheme is {scheme.name!r}"
        )
    if not dataset.is_classification:
        raise InputError(
            f"data.name is {experiment.data.name!r}, whose labels are numbers: a simulation "
            "centres them by their exact mean, outside the privacy budget; choose labels that are "
            f"classes where the scheme is {scheme.name!r}, or a federation, which does not centre"
        )
    refuse_own_scale(dataset, scheme.name)


def refuse_own_scale(dataset: Dataset, scheme: str) -> None:
    """Refuse inputs that were scaled by the range of the training values."""
    if dataset.origin.own_scale:
        raise InputError(
            f"the inputs of {dataset.name} are not in [0, 1], and would be scaled by their own "
            f"range outside the privacy budget, where the scheme is {scheme!r}: give public bounds "
            "of the values in data.low and data.high, a number or one for each input column"
        )
