"""What is kept of a paced run, and how it continues; nothing where there is no folder."""

from collections.abc import Mapping, Sequence

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from codedfedl.pacing.flower.replies import Treatment, mean_content, model_of
from codedfedl.pacing.pacer import Pacer
from codedfedl.pacing.pages import Pages
from codedfedl.pacing.rounds import Entry, PacingJournal, Round

__all__ = ["Recorder"]


class Recorder:
    """A run's journal, its tables and its page.

    A strategy that takes a weighted mean gets the mean of a round again. For any other, a round is
    finished when its result is known, which is the model of the next one: as many replies with it
    as there were lead to it again.
    """

    def __init__(self, journal: PacingJournal | None, treatment: Treatment) -> None:
        self._journal, self._treatment = journal, treatment
        self._open: tuple[int, Entry] | None = None
        self._pages = None if journal is None else Pages(journal.folder, journal.facts())
        self._replayed = 0 if self._pages is None else len(self._pages.rounds)

    def restore(self, pacers: Mapping[str, Pacer]) -> None:
        """Give pacers what they had learned."""
        if self._journal is not None:
            for kind, pacer in pacers.items():
                if kind in self._journal.document:
                    pacer.restore(self._journal.document[kind])
            pacers["train"].rounds = self._replayed

    def check(self, question: Message, number: int) -> None:
        """Refuse a folder of another app when a run begins; finish the round before."""
        if self._journal is None:
            return
        model = model_of(question) or {}
        shapes = {name: list(array.shape) for name, array in model.items()}
        if number == 1:
            self._journal.check({"arrays": shapes, "weights": self._treatment.key})
        if self._open is not None and number > self._replayed + 1:
            before, entry = self._open
            self._journal.append(before, Entry(entry.facts, model, entry.metrics, entry.copies))
            self._open = None

    def replay(self, kind: str, number: int, question: Message) -> list[Message] | None:
        """Return what stands for the replies of a finished round; None for one to be played."""
        if self._journal is None or number > self._replayed:
            return None
        if kind != "train" or (entry := self._journal.entry(number)) is None or not entry.metrics:
            return []
        arrays = {name: Array(array) for name, array in entry.arrays.items()}

        def content() -> RecordDict:  # some strategies empty the records that they get
            metrics = MetricRecord(dict(entry.metrics))
            return RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})

        return [Message(content(), reply_to=question) for _ in range(entry.copies)]

    def keep(
        self,
        kind: str,
        number: int,
        played: Round,
        replies: Sequence[Message],
        pacers: Mapping[str, Pacer],
    ) -> None:
        """Keep a round that was played."""
        if self._journal is None or self._pages is None:
            return
        facts = played.facts()
        if kind == "train":
            entry = Entry(facts)
            if replies:
                arrays, metrics = mean_content(replies, self._treatment.key)
                entry = Entry(facts, arrays, metrics)
            if self._treatment.factors or not replies:
                self._journal.append(number, entry)
            else:
                self._open = number, Entry(facts, {}, entry.metrics, len(replies))
            self._pages.rounds.append(facts)
        else:
            self._pages.evaluation_seconds += played.seconds
        self._journal.keep_state(**{name: pacer.state() for name, pacer in pacers.items()})

    def write_in_background(self) -> None:
        """Bring tables and page up to date while others wait."""
        if self._pages is not None:
            self._pages.write_in_background()

    def close(self) -> None:
        """Write the last state."""
        if self._pages is not None:
            self._pages.close()
