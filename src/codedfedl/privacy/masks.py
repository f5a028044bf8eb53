"""Masks that a client and the helper know, and nobody else.

A client and the helper agree on a seed by X25519, the helper's public key being pinned at the
client; HKDF derives from it a key for every question, and ChaCha20 stretches that to as many
integers as the answer has. Uniform integers added modulo 2³² leave nothing of what they hide.

There is a pair of keys for the helper, and one for every client: X25519 keys in hexadecimal digits.
The private one is made where it is used and never leaves; the public one lies beside it, with the
ending ``.pub``.

The helper is a party that sees no data, and tells the server the sum of the masks of a round.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from scipy.special import ndtri

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.io.files import make_folder, replacing
from codedfedl.privacy.fixed_point import LEAST_SUMMED, Residues, noise_steps

__all__ = [
    "Binding",
    "Helper",
    "Sender",
    "keystream",
    "mask",
    "own_key",
    "own_noise",
    "public_digits",
    "read_public",
    "shared_seed",
    "system_normal",
]

_SEED = b"codedfedl secure sum, seed, 1"
_MASK = b"codedfedl secure sum, mask, 1"


def own_key(path: Path) -> X25519PrivateKey:
    """Return the private key in a file, which is made on the first call, for its owner alone."""
    if not path.is_file():
        make_folder(path.parent)
        made = X25519PrivateKey.generate()
        with replacing(path) as partial:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(made.private_bytes_raw().hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
    elif path.stat().st_mode & 0o077:
        raise InputError(f"{path} can be read by others: chmod 600 {path}")
    key = X25519PrivateKey.from_private_bytes(_digits(path))
    with replacing(path.with_suffix(".pub")) as partial:
        partial.write_text(public_digits(key) + "\n", "ascii")
    return key


def public_digits(key: X25519PrivateKey) -> str:
    """Return the public half in hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def read_public(path: Path) -> str:
    """Return the public key in a file, in hexadecimal digits."""
    return _digits(path).hex()


def _digits(path: Path) -> bytes:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the key {path}: {error}") from None
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise InputError(
            f"{path} is not a key for masks: such a key has 64 hexadecimal digits, as in "
            "masks.pub, which codedfedl federate helper makes"
        )
    return bytes.fromhex(text)


@dataclass(frozen=True)
class Binding:
    """What a mask is for; under another binding it is another mask.

    Attributes
    ----------
    federation
        The federation's own name or key, as text.
    round, attempt
        A round that is played again has another attempt.
    ask
        Hash of the ask, in hexadecimal digits: the work with its settings, and the model.
    """

    federation: str
    round: int
    attempt: int
    ask: str

    @property
    def place(self) -> str:
        """Federation, round and attempt as text, which identify one ask."""
        return json.dumps([self.federation, self.round, self.attempt])

    @property
    def digest(self) -> bytes:
        """A hash that no other binding has."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()


def shared_seed(private: X25519PrivateKey, other: bytes, *, helper: bytes) -> bytes:
    """Return the seed that a client and the helper share.

    Parameters
    ----------
    private
        The private key of whoever calls.
    other
        The public key of the other one, 32 bytes; at a client, the pinned one of the helper.
    helper
        The helper's public key: both sides bind the seed to both keys.
    """
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise InputError(f"a public key for X25519 is refused ({error}): pin another") from None
    mine = private.public_key().public_bytes_raw()
    client = other if mine == helper else mine
    derived = HKDF(hashes.SHA256(), length=32, salt=None, info=_SEED + helper + client)
    return derived.derive(secret)


def mask(seed: bytes, binding: Binding, numbers: int) -> Residues:
    """Return the mask of a client for one question, shape (numbers,)."""
    key = HKDFExpand(hashes.SHA256(), length=32, info=_MASK + binding.digest).derive(seed)
    return keystream(key, numbers)


def keystream(key: bytes, numbers: int) -> Residues:
    """Return uniform integers from ChaCha20; a key must be used once, since the nonce is 0."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    stream = cipher.update(bytes(4 * numbers))
    return np.frombuffer(stream, dtype="<u4").astype(np.uint32)


class Sender:
    """A client's side: it never sends two plaintexts under one mask.

    Parameters
    ----------
    seed
        From `shared_seed`.
    sent
        What was sent for every federation, round and attempt, kept where a restart finds it. It is
        written before the answer leaves.
    """

    def __init__(self, seed: bytes, sent: MutableMapping[str, bytes]) -> None:
        self._seed, self._sent = seed, sent

    def masked(
        self, binding: Binding, question: bytes, make: Callable[[], tuple[bytes, Residues]]
    ) -> tuple[bytes, Residues]:
        """Return an answer under its mask; the same question again gets the same bytes.

        Parameters
        ----------
        question
            All that the client was asked; another one for the same round and attempt is refused.
        make
            Returns what travels beside the answer in the clear, and the answer, one row of uint32.
        """
        key = hashlib.sha256(binding.place.encode()).hexdigest()
        asked = hashlib.sha256(question + binding.digest).digest()
        if key not in self._sent:
            note, plain = make()
            if not _is_vector(plain):
                raise InputError(f"plain has shape {np.shape(plain)}: give one row of uint32")
            hidden = plain + mask(self._seed, binding, len(plain))
            length = len(note).to_bytes(4, "little")
            self._sent[key] = asked + length + note + hidden.astype("<u4").tobytes()
        stored = self._sent[key]
        if stored[:32] != asked:
            raise InputError(
                f"round {binding.round}, attempt {binding.attempt}: another question was already "
                "answered under this mask, and two answers would reveal their difference; ask in a "
                "new attempt"
            )
        end = 36 + int.from_bytes(stored[32:36], "little")
        return stored[36:end], np.frombuffer(stored[end:], dtype="<u4").astype(np.uint32)


def _is_vector(plain: object) -> TypeGuard[Residues]:
    return isinstance(plain, np.ndarray) and plain.ndim == 1 and plain.dtype == np.uint32


def system_normal(numbers: int) -> FloatArray:
    """Return standard normal numbers from the operating system's randomness.

    Each is the quantile of a uniform number of 53 bits, so none is beyond 8.3. They are to be
    rounded to integers before anybody sees them: the last bits of floating-point noise would tell
    what it was added to.
    """
    words = keystream(os.urandom(32), 2 * numbers).view(np.uint64)
    return np.asarray(ndtri((np.right_shift(words, np.uint64(11)) + 0.5) * 2.0**-53))


def own_noise(deviation: float, numbers: int) -> Residues:
    """Return a node's share of the noise, from the operating system."""
    return noise_steps(deviation, system_normal(numbers) if deviation else np.zeros(numbers))


class Helper:
    """Adds up masks, subtracts noise, and answers one list of clients a round.

    Parameters
    ----------
    federation
        The only federation it serves, as in `Binding.federation`.
    key
        Its private key, whose public half the clients pin.
    clients
        Everybody's public key, by name.
    noise : mapping of int to float
        Standard deviation of the Gaussian noise of every round that it will answer, in steps of
        the fixed-point numbers; 0 for none. It is agreed on beforehand, so that no server can ask
        for less. A round that is not in it is refused.
    answers
        What it has answered, by round, kept where a restart finds it. It is written before an
        answer leaves.
    least
        The fewest clients that a sum may be over.
    normal
        Draws the noise; from the operating system by default.

    Notes
    -----
    It must not collude with the server: together they see each client's own answer.
    """

    def __init__(
        self,
        federation: str,
        key: X25519PrivateKey,
        clients: Mapping[str, bytes],
        noise: Mapping[int, float],
        answers: MutableMapping[str, bytes],
        *,
        least: int = LEAST_SUMMED,
        normal: Callable[[int], FloatArray] = system_normal,
    ) -> None:
        if not LEAST_SUMMED <= least <= len(clients):
            raise InputError(
                f"least is {least} where there are {len(clients)} clients: must be at least "
                f"{LEAST_SUMMED} and at most all of them"
            )
        public = key.public_key().public_bytes_raw()
        self._seeds = {
            name: shared_seed(key, theirs, helper=public) for name, theirs in clients.items()
        }
        self.federation, self.least = federation, least
        self._noise, self._answers, self._normal = dict(noise), answers, normal

    def answer(self, binding: Binding, arrived: Sequence[str], numbers: int) -> Residues:
        """Return the sum of the masks of those who arrived, less the noise, shape (numbers,)."""
        names = self._checked(binding, arrived, numbers)
        question = json.dumps([asdict(binding), names, numbers], sort_keys=True)
        asked, key = hashlib.sha256(question.encode()).digest(), str(binding.round)
        if key not in self._answers:
            total = np.zeros(numbers, dtype=np.uint32)
            for name in names:
                total += mask(self._seeds[name], binding, numbers)
            total -= noise_steps(self._noise[binding.round], self._normal(numbers))
            self._answers[key] = asked + total.astype("<u4").tobytes()
        stored = self._answers[key]
        if stored[: len(asked)] != asked:
            raise InputError(
                f"round {binding.round} was answered for another list, attempt or ask: two sums "
                "would reveal their difference; start a new round"
            )
        return np.frombuffer(stored[len(asked) :], dtype="<u4").astype(np.uint32)

    def _checked(self, binding: Binding, arrived: Sequence[str], numbers: int) -> list[str]:
        if binding.federation != self.federation:
            raise InputError(
                f"federation is {binding.federation!r}: this helper serves {self.federation!r}"
            )
        if binding.round not in self._noise:
            raise InputError(
                f"round is {binding.round}: the plan has {len(self._noise)} sums, and no budget "
                "is left for another"
            )
        if numbers < 1:
            raise InputError(f"numbers is {numbers}: must be at least 1")
        names = sorted(set(arrived))
        if len(names) < len(arrived):
            raise InputError("arrived names a client twice: name each once")
        if unknown := [name for name in names if name not in self._seeds]:
            raise InputError(f"arrived names {unknown[0]!r}, which is not a client of this helper")
        if len(names) < self.least:
            raise InputError(
                f"arrived has {len(names)} clients: a sum is over {self.least} or more; wait "
                "longer, and repeat the round"
            )
        return names
