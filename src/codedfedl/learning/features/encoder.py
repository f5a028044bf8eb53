"""A frozen encoder: a network or function that every client has, run on its own points."""

import hashlib
import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, to_host
from codedfedl.errors import InputError
from codedfedl.io.files import cache_folder, make_folder, replacing
from codedfedl.io.names import member_of
from codedfedl.learning.features.base import Identity
from codedfedl.learning.features.network import count_operations, read_network
from codedfedl.random import stream

Encodes = Callable[[Any], Any]
"""From points of shape (n, d), or a list of n texts, to embeddings of shape (n, q)."""

_ROWS_AT_ONCE = 256
_PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "In 1969, 3.14159 million people watched; 42% of them didn't sleep!",
    "def transform(points): return points @ weights + bias  # of the model, data and code",
    "Die Straße ist naß, l'été est fini, ¿qué hora es? 東京は晴れです。 привет мир",
    "The patient reports chest pain, fever and a cough; the doctor gave medicine at the hospital.",
    "Please pay the invoice of £1,250.00 to our bank account: the price of the order was too high.",
    "http://example.org/a?b=c&d=e user@example.org #tag <html> {json: [1, 2]}",
    "wonderful, terrible, boring, exciting, cheap, expensive, true, false, yes, no, good, bad",
    "The court found the company guilty, and the judge said that the law protects every worker.",
    "Our team won the game in the last minute, and the players ran across the field to the crowd.",
    "Cook the rice with milk, salt and butter in the oven, then eat it with fish, cake and wine.",
    "The ship left the island at night; wind, waves and rain drove it along the coast of the sea.",
    "My phone does not start after the update: the screen is black, and the battery is new.",
    "The president met the minister to talk about war, peace, trade, oil, taxes and the election.",
    "I love this film: the actor, the music and the story are the best that I have seen in years.",
    "Students at the university read books on science, history, art, language and mathematics.",
    "The train was late, the hotel room was dirty, but the city, its people and food were great.",
    "A child, his mother, father and sister live in a small house with a dog and a garden.",
    "Energy, light and heat come from the sun to the earth; water, air and animals need them.",
    "Send an email to the customer service if the product is broken, wrong, missing or not used.",
)
_RANDOM_PROBES, _RANDOM_WORDS = 24, 40


@dataclass(frozen=True)
class Encoder:
    """Embeddings from a frozen encoder: the raw points go in, and a linear head is trained on them.

    It is not delivered to clients. Each has it by its own configuration, and a `fingerprint` says
    whether two have the same.

    Parameters
    ----------
    source
        What it is called: an ONNX file, or ``module:function``.
    encode
        From points, shape (n, d), or a list of texts to embeddings, shape (n, q).
    text
        Whether it takes texts.
    normalise
        Whether embeddings are scaled to length 1, which bounds what a client's answer can be; an
        embedding of zeros stays.
    operations
        Multiply-accumulates for one point, if stated; an ONNX file's are counted otherwise.
    digest
        SHA-256 of an ONNX file; empty for a function, which is known by its outputs alone.
    """

    source: str
    encode: Encodes = field(compare=False, repr=False)
    text: bool = False
    normalise: bool = True
    operations: int | None = None
    digest: str = ""
    _sizes: dict[int, int] = field(default_factory=dict, compare=False, repr=False)
    _operations: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    shift_invariant: ClassVar[bool] = False
    rows_at_once: ClassVar[int] = _ROWS_AT_ONCE

    @property
    def largest_square(self) -> float:
        """1 where embeddings are normalised, else ∞."""
        return 1.0 if self.normalise else np.inf

    def size(self, inputs: int) -> int:
        """Return q: a point is encoded to find out, once."""
        if inputs not in self._sizes:
            self._sizes[inputs] = self.transform(self.probes(inputs)[:1]).shape[1]
        return self._sizes[inputs]

    def macs(self, inputs: int) -> int:
        """Return the operations of one point, as stated or as counted in the graph."""
        if self.operations is not None:
            return self.operations
        if self.digest:
            if inputs not in self._operations:
                self._operations[inputs] = count_operations(Path(self.source), inputs)
            return self._operations[inputs]
        raise InputError(
            f"features.operations is not given, and cannot be counted for {self.source!r}: say the "
            "multiply-accumulates of one point, which the clients' clocks are charged"
        )

    def transform(self, points: Array) -> npt.NDArray[np.float32]:
        """Encode points, or texts of shape (n, 1), some at a time; on the host."""
        given = to_host(points)
        self._check_kind(given)
        starts = range(0, len(given), _ROWS_AT_ONCE)
        parts = [self._encoded(given[start : start + _ROWS_AT_ONCE]) for start in starts]
        encoded = np.concatenate(parts) if parts else np.empty((0, self.size(given.shape[1])))
        if not self.normalise:
            return encoded.astype(np.float32)
        lengths = np.linalg.norm(encoded, axis=1, keepdims=True)
        return (encoded / np.where(lengths > 0, lengths, 1)).astype(np.float32)

    def probes(self, inputs: int) -> npt.NDArray[Any]:
        """Return the fixed points, or texts, on which encoders are compared."""
        if not self.text:
            return stream(0, "subset", inputs).random((3, inputs))
        random = stream(0, "subset", 0, 2)
        letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
        words = [
            " ".join("".join(random.choice(letters, random.integers(2, 9))) for _ in range(count))
            for count in [_RANDOM_WORDS] * _RANDOM_PROBES
        ]
        return np.array([*_PROBES, *words])[:, None]

    def remembered(self, points: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return `transform` of points, from the user's cache where they were encoded before."""
        path = cache_folder("embeddings") / f"{self._key(points)}.npy"
        with suppress(OSError, ValueError):  # it is not there, or broken
            return np.asarray(np.load(path, allow_pickle=False))
        encoded = self.transform(points)
        with suppress(OSError, InputError):  # a cache that cannot be written is not needed
            make_folder(path.parent)
            path.parent.chmod(0o700)
            with replacing(path) as partial, partial.open("wb") as file:
                np.save(file, encoded)
        return encoded

    def _key(self, points: npt.NDArray[Any]) -> str:
        """Return what the embeddings depend on: points, probes, and the function's own file."""
        key = hashlib.sha256(
            f"{self.digest} {self.normalise} {points.shape} {points.dtype}".encode()
        )
        key.update(points.tobytes())
        key.update(self.transform(self.probes(points.shape[1])).tobytes())
        if not self.digest:
            key.update(_code(self.encode))
        return key.hexdigest()

    def _check_kind(self, points: npt.NDArray[Any]) -> None:
        if (points.dtype.kind == "U") != self.text:
            takes, has = ("texts", "numbers") if self.text else ("numbers", "texts")
            raise InputError(
                f"the encoder {self.source!r} takes {takes}, and the data are {has}: name the "
                "column of texts in data.text, or leave that out for numbers"
            )

    def _encoded(self, points: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            encoded = np.asarray(self.encode(points[:, 0].tolist() if self.text else points))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the encoder {self.source!r} failed ({type(error).__name__}: {error})"
            ) from error
        if encoded.ndim != 2 or len(encoded) != len(points) or encoded.dtype.kind not in "biuf":
            raise InputError(
                f"the encoder {self.source!r} returned {encoded.dtype} of shape {encoded.shape} "
                f"for {len(points)} points: return an array of numbers with a row for each"
            )
        if not np.isfinite(encoded).all():
            row = int(np.argmin(np.isfinite(encoded).all(axis=1)))
            raise InputError(
                f"the encoder {self.source!r} returned a value that is not finite for "
                f"{str(points[row].tolist())[:80]}: leave that point out, or mend the encoder"
            )
        return encoded


@dataclass(frozen=True)
class Encoded(Identity):
    """Embeddings that an encoder has made already: taken as they are, and charged as its work."""

    operations: int = 0

    def macs(self, inputs: int) -> int:
        """Return the operations of the encoder."""
        return self.operations


def names_encoder(source: str) -> bool:
    """Whether a name is that of an ONNX file or a function, rather than of a feature map."""
    if source.endswith(".onnx"):
        return True
    return ":" in source and not isinstance(member_of(source, "the encoder"), type)


def load_encoder(
    source: str, *, text: bool = False, normalise: bool = True, operations: int | None = None
) -> Encoder:
    """Return an encoder from an ONNX file, or from a Python function as ``module:function``.

    The function gets an array of points, shape (n, d), or with `text` a list of strings, and
    returns embeddings, shape (n, q). Its module lies in the current folder or is installed.
    """
    if source.endswith(".onnx"):
        if text:
            raise InputError(
                f"the encoder {source} gets texts: wrap it and its tokeniser in a Python function, "
                "and name that as module:function"
            )
        encode, digest = read_network(Path(source))
        return Encoder(source, encode, text, normalise, operations, digest)
    if not names_encoder(source):
        raise InputError(f"the encoder is {source!r}: name an .onnx file, or module:function")
    function = member_of(source, "the encoder")
    if not callable(function):
        raise InputError(f"the encoder {source!r} is not a function: write module:function")
    return Encoder(source, function, text, normalise, operations)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A fitted transformer of scikit-learn's kind, as a function that can be pickled."""

    transformer: Any

    def __call__(self, points: Any) -> Any:
        with warnings.catch_warnings():  # columns come in the order of the names that it knows
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            encoded = self.transformer.transform(points)
        return encoded.toarray() if hasattr(encoded, "toarray") else encoded


def encoder_of(given: Any, *, text: bool, normalise: bool, operations: int | None) -> Encoder:
    """Return an encoder from its name, an `Encoder`, or anything fitted that has `transform`."""
    if isinstance(given, str):
        return load_encoder(given, text=text, normalise=normalise, operations=operations)
    if isinstance(given, Encoder):
        return given
    if not hasattr(given, "transform"):
        raise InputError(
            f"the encoder is {given!r}: give an .onnx file, module:function, or a fitted "
            "transformer"
        )
    _check_fitted(given)
    return Encoder(type(given).__name__, _Fitted(given), text, normalise, operations)


def _check_fitted(transformer: Any) -> None:
    from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
    from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]
    from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

    if not isinstance(transformer, BaseEstimator):
        return
    try:
        check_is_fitted(transformer)
    except NotFittedError:
        raise InputError(
            f"the encoder is a {type(transformer).__name__} that is not fitted: fit it on public "
            "data first; in a search, which makes unfitted copies, wrap it in "
            "sklearn.frozen.FrozenEstimator"
        ) from None


def _code(function: Any) -> bytes:
    """Return the file that a function is written in; nothing where there is none."""
    try:
        return Path(inspect.getfile(function)).read_bytes()
    except (TypeError, OSError):
        return b""
