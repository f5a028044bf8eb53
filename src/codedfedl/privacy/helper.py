"""The helper: a party that sees no data, and tells the server the sum of the masks of a round."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import asdict

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.special import ndtri

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.privacy.fixed_point import LEAST_SUMMED, FixedPoint, Residues, noise_steps
from codedfedl.privacy.masks import Binding, keystream, mask, shared_seed

__all__ = ["Helper", "decoded_sum", "system_normal"]


def system_normal(numbers: int) -> FloatArray:
    """Return standard normal numbers from the operating system's randomness.

    Each is the quantile of a uniform number of 53 bits, so none is beyond 8.3. They are to be
    rounded to integers before anybody sees them: the last bits of floating-point noise would tell
    what it was added to.
    """
    words = keystream(os.urandom(32), 2 * numbers).view(np.uint64)
    return np.asarray(ndtri((np.right_shift(words, np.uint64(11)) + 0.5) * 2.0**-53))


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


def decoded_sum(
    masked: Iterable[Residues], correction: Residues, numbers: FixedPoint
) -> FloatArray:
    """Return the sum of the clients' answers, with the noise, at the server.

    Parameters
    ----------
    masked
        From the clients on the list that the helper was asked about, and from nobody else.
    correction
        What the helper answered.
    """
    total = np.zeros_like(correction)
    for answer in masked:
        total += answer
    return numbers.decode(total - correction)
