"""What may leave a node. Every answer to an ask for work passes `DataLimits.answer`.

Three rules, whatever a server asks for:

1. *One job.* The first job on a data set is pinned: feature map, seed, scaling, mini-batches, and
   the data themselves. Another one is refused until the node's owner accepts it by its digest.
2. *No sum over few points.* All exact sums that were ever given of a data set are intervals of its
   points, in one fixed order. Their ends cut the points into segments. Each segment that lies in a
   sum has at least `least` points, and a tenth of the shortest sum that it lies in. Every linear
   combination of sums gives all points of a segment the same coefficient: it is 0, or a
   combination over `least` points or more. Only points that are embedded are in a sum, each once.
   Label counts are sums too, over all points of a job: to them, the tenth does not apply. What is
   done by a window's end is not known before: it is of whole blocks, each of which counts as given.
3. *No thin parity.* Behind each parity row stand at least `least` points, counted by their weights.

Private sums are exempt from rule 2: their noise is accounted for (`federate.secure.vault`). The
only other answer made of points is of all of them: `moments`, means and spreads for a common
scale, so rounded that an exact sum over all points but one does not show this one. Of a network,
a malicious server chooses a model whose sums show single points: its owner allows it, or not.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.core.gradients import block_ends
from codedfedl.core.work import Answer, ArrayClient, Points, Work
from codedfedl.data.shards import Shard, moments
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.io.files import durable, locked
from codedfedl.learning.learner import Learner

__all__ = ["DataLimits", "Embedding", "digest_of"]

RAW_FACTOR = 5
"""Raw points and an encoder's outputs may have columns in which one point stands out: exact sums of
them are over this many times more points."""

_SHARE = 10  # a segment has at least one tenth of the shortest sum that it lies in

_ANOTHER_JOB = "another job was answered before, and sums of both show more than those of one"
_CHANGED_DATA = "the data have changed since an earlier job, and sums over both show what changed"

_log = logging.getLogger(__name__)

_Interval = tuple[int, int]


def digest_of(job: Job, fingerprint: str) -> str:
    """Return what a node's owner accepts: all of a job but its federation's key, and the data."""
    settings = {name: value for name, value in asdict(job).items() if name != "key"}
    if not job.words:
        del settings["words"]
    text = json.dumps([settings, fingerprint], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class Embedding:
    """A node's points, of which the first `embedded` are embedded.

    Attributes
    ----------
    features, targets : arrays of shape (n, q) and (n, c)
        In the data set's fixed order.
    is_raw
        Whether features are raw points, or an encoder's outputs.
    learner
        What is trained; by default least squares.
    """

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.float32]
    embedded: int
    batches: int
    is_raw: bool
    learner: Learner = None  # type: ignore[assignment]

    def rows_of(self, batch: int) -> _Interval:
        """Return where a mini-batch begins and ends; a custom kind of work may name any."""
        if type(batch) is not int or not 0 <= batch < self.batches:
            raise InputError(f"batch is {batch!r}: must be from 0 to {self.batches - 1}")
        size, more = divmod(len(self.targets), self.batches)
        start = batch * size + min(batch, more)
        return start, start + size + (batch < more)


class DataLimits:
    """The jobs and sums that were given of one data set, on the node's own disk.

    Parameters
    ----------
    folder
        Outlives every federation.
    data
        Name of the data set.
    fingerprint
        Hash of its points and labels.
    least
        Minimum number of points behind every number that leaves.
    accepted
        Digests of further jobs that the node's owner accepts.
    """

    def __init__(
        self, folder: Path, data: str, fingerprint: str, least: int, accepted: Collection[str] = ()
    ) -> None:
        self.data, self.fingerprint, self.least, self.accepted = data, fingerprint, least, accepted
        self.path = folder / f"{hashlib.sha256(data.encode()).hexdigest()[:32]}.json"

    def pin(self, job: Job) -> int:
        """Refuse a job that is neither the first one nor accepted; return the order's seed.

        The first job's seed orders the points for all jobs, so that their sums can be judged
        together.
        """
        digest = digest_of(job, self.fingerprint)
        with self._record() as record:
            entry = self._entry(record, job, digest)
            if digest not in entry["jobs"]:
                if entry["jobs"]:
                    self._check_accepted(digest, _ANOTHER_JOB)
                _log.info("job %s is pinned to the data set %s", digest, self.data)
                entry["jobs"].append(digest)
                self._write(record)
            return int(entry["order"])

    def moments(self, job: Job, shard: Shard) -> dict[str, FloatArray]:
        """Return rounded means and spreads of all points, for a job that has no scale yet."""
        with self._record() as record:
            self._entry(record, job, digest_of(job, f"means of {self.fingerprint}"))
            self._write(record)
        return vars(moments(shard))

    def _entry(self, record: dict[str, Any], job: Job, digest: str) -> dict[str, Any]:
        """Return what was given of the data; refuse changed data that were not accepted."""
        if self.fingerprint not in record:
            if record:
                self._check_accepted(digest, _CHANGED_DATA)
            record[self.fingerprint] = {"order": job.seed, "jobs": [], "sums": [], "counts": []}
        entry: dict[str, Any] = record[self.fingerprint]
        return entry

    def _check_accepted(self, digest: str, why: str) -> None:
        if digest not in self.accepted:
            raise InputError(
                f"this job on the data set {self.data!r} is not accepted: {why}; its owner accepts "
                f"it by starting the node with --accept {digest}"
            )
        _log.warning("job %s is accepted on the data set %s", digest, self.data)

    def answer(
        self,
        work: Work,
        points: int,
        data: Embedding,
        model: npt.NDArray[np.float32] | None,
        stream: Callable[..., np.random.Generator],
        clock: Callable[[], float],
    ) -> Answer:
        """Do work on the first points that it may cover, and return the answer if it may leave.

        Parameters
        ----------
        points
            As many as the work says.
        stream
            The code's randomness.
        clock
            Returns seconds, for work with a window.
        """
        start, stop = 0, data.embedded
        if work.exact:
            start, stop = self._granted(work, points, data)
            points = min(points, stop - start)
        client = _Visible(
            *(data.features, data.targets, data.batches, stream, start, stop),
            partial=work.exact,
            learner=data.learner,
        )
        answer = work.timed(client, points, model, clock)
        if answer.arrays:
            _refuse_few(work, answer.least_mixed, self.least)
        if work.exact and not all(np.isfinite(array).all() for array in answer.arrays.values()):
            raise InputError(
                f"{work.kind} is not finite: remove points that are not, or take a smaller step"
            )
        return answer

    def _granted(self, work: Work, points: int, data: Embedding) -> _Interval:
        """Return the rows that an exact sum may cover, and write down what it may be of."""
        least = self.least * (RAW_FACTOR if data.is_raw else 1)
        batch = getattr(work, "batch", None)
        start, limit = (0, data.embedded) if batch is None else data.rows_of(batch)
        needed = points if work.window is None else limit - start
        if points < 1 or start + max(points, needed) > min(limit, data.embedded):
            raise InputError(
                f"{work.kind} over {points} points from {start} on: its points end at {limit}, and "
                f"{data.embedded} are embedded"
            )
        pieces = [(start, start + points)]
        if work.window is not None:
            pieces = list(pairwise([start, *(start + block_ends(limit - start)).tolist()]))
        _refuse_few(work, min(b - a for a, b in pieces), least)
        with self._record() as record:
            entry, kind = record[self.fingerprint], "sums" if work.embeds else "counts"
            ends = {end for known in ("sums", "counts") for given in entry[known] for end in given}
            cuts = {cut for end in ends for cut in (end, end - least) if 0 < cut - start < points}
            fewer = sorted(cuts, reverse=True) if work.elastic and len(pieces) == 1 else ()
            for given in (pieces, *([(start, cut)] for cut in fewer)):
                after = entry | {kind: sorted({*entry[kind], *given})}
                if _apart(after["sums"], after["counts"], least):
                    self._write(record | {self.fingerprint: after})
                    return start, given[-1][1]
        raise InputError(
            f"{work.kind} over {points} points from {start} on would show, beside earlier sums, "
            f"fewer than {least} points or a tenth of a sum: ask for the points of an earlier sum, "
            "or for many more or fewer"
        )

    @contextmanager
    def _record(self) -> Iterator[dict[str, Any]]:
        """Yield what was given of the data set, by the data's fingerprint, under a lock."""
        with locked(self.path.with_suffix(".lock"), private=True):
            yield self._read()

    def _read(self) -> dict[str, Any]:
        if not self.path.is_file():
            return {}
        try:
            return {
                fingerprint: {
                    "order": int(entry["order"]),
                    "jobs": [str(digest) for digest in entry["jobs"]],
                    **{
                        kind: [(int(start), int(stop)) for start, stop in entry[kind]]
                        for kind in ("sums", "counts")
                    },
                }
                for fingerprint, entry in json.loads(self.path.read_text("utf-8")).items()
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(
                f"{self.path} is damaged, so that this node cannot tell what it gave already: "
                "restore it from a copy; nothing is answered until then"
            ) from None

    def _write(self, record: dict[str, Any]) -> None:
        with durable(self.path) as file:
            file.write(json.dumps(record).encode())


def _refuse_few(work: Work, points: int, least: int) -> None:
    if points < least:
        raise InputError(
            f"{work.kind} mixes {points} points, and this node answers for {least} together at "
            "least: ask for more, or lower --least at the node"
        )


def _apart(sums: Collection[_Interval], counts: Collection[_Interval], least: int) -> bool:
    """Say whether every segment between ends that lies in a sum has enough points."""
    ends = sorted({end for interval in (*sums, *counts) for end in interval})
    for a, b in pairwise(ends):
        around = [stop - start for start, stop in sums if start <= a and b <= stop]
        counted = any(start <= a and b <= stop for start, stop in counts)
        if (around or counted) and b - a < max(least, -(-min(around, default=0) // _SHARE)):
            return False
    return True


@dataclass(frozen=True, eq=False)
class _Visible(ArrayClient):
    """A client of which work sees only the rows from `start` to `stop`.

    Attributes
    ----------
    partial
        Whether a mini-batch is seen as far as it is visible; otherwise it must be as a whole.
    """

    start: int
    stop: int
    partial: bool = field(kw_only=True)

    def batch(self, b: int) -> Points:
        """Return the visible points of a mini-batch."""
        begin, end = self.batch_start(b), self.batch_start(b + 1)
        return self._rows(begin, min(end, self.stop) if self.partial else end)

    def first(self, count: int) -> Iterator[Points]:
        """Yield the first points, if they are the visible ones."""
        yield self._rows(0, count)

    def _rows(self, begin: int, end: int) -> Points:
        exact = (begin, end) == (self.start, self.stop)
        if not (exact if self.partial else self.start <= begin <= end <= self.stop):
            raise InputError(
                f"the work needs points {begin} to {end}, and may use {self.start} to {self.stop}: "
                "ask for those, or wait until more are embedded"
            )
        return self.features[begin:end], self.targets[begin:end]
