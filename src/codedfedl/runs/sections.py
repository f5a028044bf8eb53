"""The tables of an experiment in TOML: their keys, bounds and defaults."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from codedfedl.data import Dataset, load_dataset
from codedfedl.data.files import TABLES
from codedfedl.data.loading import FOLDS
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.learning.features import FEATURE_KINDS, Tiles, components_for
from codedfedl.learning.learner import Learner, LeastSquares
from codedfedl.schemes import Scheme, make_scheme, scheme_class

MAX_ROUNDS = 10_000_000


def _known_features(kind: str) -> str:
    if kind not in FEATURE_KINDS and ":" not in kind:
        raise ValueError(nearest(kind, FEATURE_KINDS))
    return kind


FeatureKind = Annotated[str, AfterValidator(_known_features)]


class Section(BaseModel):
    """A table of an experiment: no other keys, and no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def is_table(name: Any, text: Any) -> bool:
    """Whether data of this name are a file with columns of numbers and categories, not texts."""
    return isinstance(name, str) and name.endswith(TABLES) and text is None


class DataConfig(Section):
    """The data, and their partition over the clients.

    Attributes
    ----------
    name
        ``digits``, ``digits-halves`` (a regression), ``mnist``, ``fashion-mnist``, or a file that
        ends in .csv, .parquet or .npz.
    label
        The label column of a table; several, separated by commas, are a regression.
    client
        The column of a table that names each row's client; there is no partition then.
    columns
        The inputs of a table; by default all columns but labels and clients.
    drop
        Columns of a table that are left out.
    categories
        Columns of a table whose numbers are names of categories.
    task
        ``classification`` or ``regression``, where whole numbers as labels could be either.
    test
        What is held out: by default ``points`` of every client; or whole ``clients``.
    fold
        Which fifth is held out, 0 to 4; by default the first.
    preparation
        Of a federation: the file of public constants that ``codedfedl federate split`` writes.
    text
        The column of a table that holds texts, for an encoder.
    low, high
        Public bounds of a file's input values, a number or one for each column, which are scaled by
        these instead of by their own values.
    partition
        How points are dealt to clients: ``sorted`` by label, as in the paper, ``iid``, or
        ``dirichlet``.
    concentration
        Concentration of the Dirichlet distribution; small values give clients few classes.
    batches
        Global mini-batches in an epoch.
    """

    name: str = "digits"
    label: str | None = None
    client: str | None = None
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    task: Literal["classification", "regression"] | None = None
    test: Literal["points", "clients"] | None = None
    fold: Annotated[int, Field(ge=0, lt=FOLDS)] | None = None
    preparation: str | None = None
    text: str | None = None
    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None
    partition: Literal["sorted", "iid", "dirichlet"] = "sorted"
    concentration: float = Field(0.5, gt=0)
    batches: int = Field(1, ge=1)

    @property
    def is_table(self) -> bool:
        """Whether the data are a file with columns of numbers and categories."""
        return is_table(self.name, self.text)

    def load(self, directory: str | None = None) -> Dataset:
        """Load the data; `directory` is where the files of a built-in data set are."""
        dealt = {"name", "partition", "concentration", "batches", "preparation"}
        how = self.model_dump(exclude=dealt, exclude_none=True)
        return load_dataset(self.name, directory, **how)


class FleetConfig(Section):
    """The clients' devices.

    Attributes
    ----------
    name
        ``paper``, ``phones``, a file of a fleet, of devices or of measured delays, or
        ``module:model``, a `DelayModel` of your own.
    clients
        Number of clients of a built-in fleet; by default as many as the data name, or 30.
    k1, k2
        Ratios of one link speed, and of one processor speed, to the next, of the paper's fleet.
    alpha, erasure
        α and erasure of every client of a built-in fleet.
    slower
        How many times as long clients take as the plans assume, on their processors and links, in
        the set-up and in rounds; measured delays are scaled as a whole.
    slower_share
        The share of the clients that are slower: the slowest.
    foreseen
        Whether the plans know it: what a run with wrong delays is to be compared with.
    """

    name: str = "paper"
    clients: int | None = Field(None, ge=1)
    k1: float = Field(0.95, gt=0, le=1)
    k2: float = Field(0.8, gt=0, le=1)
    alpha: float = Field(2.0, gt=0)
    erasure: float = Field(0.1, ge=0, lt=1)
    slower: float = Field(1.0, gt=0)
    slower_share: float = Field(1.0, ge=0, le=1)
    foreseen: bool = False


class FeaturesConfig(Section):
    """The feature map.

    Attributes
    ----------
    kind
        ``fourier``, ``structured``, ``patches``, ``identity``, ``encoder``, ``tangent``, or
        ``module:Class``, a map of your own. A scheme may have its own.
    n_components
        Number of features; ``auto`` is as many as the points bear (`components_for`).
    sigma
        Width of the kernel; ``auto`` is half the typical distance between two points.
    image, patch, stride, pool
        Height, width and channels of the images, the side of a patch, its step, and the side of the
        pooled map, of ``patches``; by default from the data.
    encoder
        An .onnx file, or ``module:function``, of ``encoder``.
    operations
        Multiply-accumulates of the encoder for a point; counted for an ONNX file.
    normalise
        Whether the encoder's outputs are divided by their norm.
    network
        The model file of a trained network, of ``tangent``.
    parts
        Of ``tangent``: the gradient by ``all`` parameters, by those of the ``last`` layer, or by so
        many of the last tensors.
    """

    kind: FeatureKind = "structured"
    n_components: PositiveInt | Literal["auto"] = "auto"
    sigma: Annotated[float, Field(gt=0, le=1e100)] | Literal["auto"] = "auto"
    image: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    patch: PositiveInt | None = None
    stride: PositiveInt | None = None
    pool: PositiveInt | None = None
    encoder: str | None = None
    operations: NonNegativeInt | None = None
    normalise: bool = True
    network: str | None = None
    parts: Literal["all", "last"] | PositiveInt = "all"

    def tiles(self, image: tuple[int, int, int] | None = None) -> Tiles:
        """Return how images are cut; `image` is what the data say of their shape."""
        return Tiles(self.image or image, self.patch, self.stride, self.pool)

    def components(self, points: int) -> int:
        """Return the number of features for so many points."""
        return components_for(points) if self.n_components == "auto" else self.n_components

    @property
    def known_sigma(self) -> float:
        """σ as a number."""
        if self.sigma == "auto":
            raise InputError(
                "features.sigma is 'auto', which needs all data in one place: give a number, about "
                "half the distance between two points"
            )
        return self.sigma


class ModelConfig(Section):
    """What is trained.

    Attributes
    ----------
    kind
        ``linear``, the paper's model, or ``torch``, a PyTorch network.
    module
        ``cnn``, ``mlp``, ``logistic``, or ``module:function``, a function of your own that returns
        a module.
    loss
        ``cross-entropy`` or ``squared``; ``auto`` is the first for classes, the second otherwise.
    operations
        Multiply-accumulates of one point's gradient; counted by default.
    """

    kind: Literal["linear", "torch"] = "linear"
    module: str = "cnn"
    loss: Literal["auto", "cross-entropy", "squared"] = "auto"
    operations: PositiveInt | None = None

    @property
    def name(self) -> str:
        """What tables and reports call it."""
        return self.module if self.kind == "torch" else self.kind

    def learner(
        self, features: int, labels: int, *, classes: bool, image: tuple[int, int, int] | None
    ) -> Learner:
        """Return the learner of points with so many features and label columns."""
        if self.kind == "linear":
            return LeastSquares(features, labels)
        from codedfedl.learning.torch_network import TorchNetwork, chosen_loss  # an extra

        loss = chosen_loss(self.loss, classes=classes)
        if loss == "cross-entropy" and not classes:
            raise InputError(
                "model.loss is 'cross-entropy' and the labels are numbers: use 'squared', or data "
                "with classes"
            )
        return TorchNetwork(self.module, features, labels, loss, image, self.operations)


class TrainingConfig(Section):
    """How long to train, and in which steps.

    Attributes
    ----------
    epochs
        Epochs of ``data.batches`` rounds each: the most rounds of a simulation.
    step
        Step size; ``auto`` is the largest at which no mini-batch can diverge.
    decay, decay_epochs
        The factor by which steps become smaller, and the epochs at which they do.
    ridge
        λ of the objective, for each point; by default 1e-4, and for a table 1 / points, or where
        clients are held out what is best for clients left out of training.
    target
        Accuracy, or R² of a regression, to which hours are counted; by default 99% of the way from
        chance to exact ridge regression, or one test point less than that.
    hours
        Hours on the virtual clock, with the set-up, after which a simulation stops.
    patience
        How long a server that waits for all waits where clients may be absent: this many times the
        mean time of the slowest client; by default 2.
    objective
        Whether the training objective of every scheme is recorded; by default of those that aim at
        its minimum. If false, the Gram matrix of all points is never formed.
    """

    epochs: int = Field(100, ge=1, le=MAX_ROUNDS)
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"
    decay: float = Field(0.8, gt=0, le=1)
    decay_epochs: list[NonNegativeInt] = []
    ridge: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    target: float | None = Field(None, allow_inf_nan=False)
    hours: float | None = Field(None, gt=0)
    patience: float | None = Field(None, gt=0)
    objective: bool | None = None


class SchemeConfig(BaseModel):
    """A scheme and its settings.

    Attributes
    ----------
    name
        A built-in scheme, or ``module:Class``, a scheme of your own.
    features
        The kind of its feature map, instead of the experiment's.
    secure
        Whether the server sees only sums of answers, no single answer.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    features: FeatureKind | None = None
    secure: bool | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Everything except the name."""
        return dict(self.model_extra or {})

    @property
    def plain_name(self) -> str:
        """The scheme's own name, also where it is given as ``module:Class``."""
        return scheme_class(self.name).info.name

    @property
    def label(self) -> str:
        """A label that distinguishes settings of one scheme."""
        return self.labelled(self.plain_name)

    def labelled(self, name: str) -> str:
        """Return the label with a name for the scheme."""
        settings: dict[str, Any] = {}
        for key, value in self.settings.items():  # some are tables of settings themselves
            nested = (
                {f"{key} {name}": part for name, part in value.items()}
                if isinstance(value, dict)
                else {}
            )
            settings |= nested or {key: value}
        code = str(settings.pop("code", ""))
        code += f" {settings.pop('nonzeros')}" if code and "nonzeros" in settings else ""
        words = [
            f"{100 * value:.4g}%"
            if key in ("redundancy", "drop") and isinstance(value, int | float)
            else f"{key.replace('_', ' ')} {value}"
            for key, value in settings.items()
        ]
        words += [word for word in (code, self.features, self.secure and "secure sums") if word]
        return ", ".join([" ".join([name, *words[:1]]), *words[1:]])

    def scheme(self) -> Scheme:
        """Return the scheme."""
        return make_scheme(self.name, self.settings, secure=bool(self.secure))
