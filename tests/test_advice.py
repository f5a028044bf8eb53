"""What a federation says of its rounds, and what it advises."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED, REFUSED, SETUP, Record
from codedfedl.runs.advice import Conduct, advice
from codedfedl.runs.watching import NamedRound, listed

NAMES = ["ada", "bob", "cyn"]
INF = np.inf
KINDS = {"a": ARRIVED, "l": LATE, "d": DROPPED, "n": NOT_ASKED, "r": REFUSED}


def record(
    kinds: str,
    times: Sequence[float],
    round_: int = 0,
    *,
    deadline: float = 12.0,
    seconds: float | None = None,
    late_answers: tuple[tuple[int, float], ...] = (),
    busy: tuple[int, ...] = (),
) -> Record:
    """Return a round: a letter for what became of each client, and when its answer came."""
    waits = any(kind in "ld" for kind in kinds)
    took = deadline if waits else max(t for t in times if t < INF)
    return Record(
        round=round_,
        deadline=deadline,
        seconds=took if seconds is None else seconds,
        loads=np.array([0 if kind == "n" else 10 for kind in kinds]),
        outcome=np.array([KINDS[kind] for kind in kinds], dtype=np.int8),
        arrival_times=np.array(times),
        refusals=tuple((j, "too far off") for j, kind in enumerate(kinds) if kind == "r"),
        metric=0.5,
        late_answers=late_answers,
        busy=busy,
    )


def told(
    *records: Record, probed: dict[str, float] | None = None, killed: dict[str, int] | None = None
) -> list[str]:
    numbered = [r if r.is_setup else replace(r, round=k) for k, r in enumerate(records)]
    return advice(Conduct(numbered, NAMES, probed or {}), killed, "--deadline")


GOOD = record("aaa", [4.0, 5.0, 6.0])
NOBODY = record("lll", [INF, INF, INF])


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (record("aal", [4, 5, INF]), "until the deadline"),
        (record("aal", [4, 5, INF], seconds=12.004), "until the deadline"),
        (record("aal", [4, 5, INF], seconds=5.0), "ended early: 2 answers sufficed"),
        (record("aal", [4, 5, INF], seconds=5.0, busy=(2,)), "nobody else could answer"),
        (record("aad", [4, 5, INF], seconds=5.0), "ended early: nobody else could answer"),
        (record("aan", [4, 5, INF]), "ended early: every answer was in"),
    ],
)
def test_a_round_says_why_it_ended(one: Record, why: str) -> None:
    assert NamedRound.of(one, NAMES).ended.endswith(why)


def test_a_round_in_a_sentence_and_as_facts() -> None:
    named = NamedRound.of(record("alr", [4.1234, INF, INF], 2, late_answers=((1, 17.0),)), NAMES)
    assert named.sentence(9) == (
        "round 3 of 9: 12.00 s of 12 s, until the deadline; 1 arrived (ada), 1 late (bob), 1 "
        "refused (cyn); 0.5000 on the test points"
    )
    facts = named.facts
    assert facts["arrived"] == {"ada": 4.123}
    assert (facts["late"], facts["dropped"]) == (["bob"], [])
    assert facts["refused"] == {"cyn": "too far off"}
    assert facts["late_answers"] == {"bob": 17.0}
    setup = NamedRound.of(record("aaa", [1, 1, 1], SETUP), NAMES)
    assert setup.sentence(9).startswith("set-up: 1.00 s of 12 s, ended early: every answer was in")


def test_many_names_are_cut_and_counted() -> None:
    names = [f"n{k}" for k in range(100)]
    assert listed(names) == "n0, n1, n2, n3, n4, n5, n6 and 93 others"
    assert listed(names[:8]) == "n0, n1, n2, n3, n4, n5, n6, n7"


def test_nothing_is_advised_where_all_is_well() -> None:
    assert told(GOOD, GOOD, GOOD) == []
    assert told() == []
    assert told(record("aaa", [1, 1, 1], SETUP)) == []


def test_late_answers_that_came_say_what_the_deadline_should_be() -> None:
    late = record("lll", [INF] * 3, late_answers=((0, 16.0), (1, 17.0), (2, 17.0)))
    assert told(NOBODY, late, NOBODY) == [
        "nobody met the deadline of 12 s, and 3 counted in a later round; nine in ten took up to "
        "17 s: try --deadline 20"
    ]


def test_where_nobody_answered_the_probes_say_it() -> None:
    assert told(NOBODY, NOBODY, probed={"ada": 16.0, "bob": 17.0}) == [
        "nobody met the deadline of 12 s; in the probes they took up to 17 s: try --deadline 20"
    ]


def test_where_nothing_is_known_the_deadline_is_raised_by_half() -> None:
    """Probes that were fast say nothing of rounds that are slow."""
    assert told(NOBODY, NOBODY, probed={"ada": 2.0}) == [
        "nobody met the deadline of 12 s; how long the others took is not known: try --deadline 18"
    ]


def test_answers_that_are_late_now_and_then() -> None:
    """Of 12 expected answers 4 are late, and it is not known by how much."""
    one, other = record("lla", [INF, INF, 6.0]), record("aal", [4.0, 5.0, INF])
    found = told(one, other, record("lla", [INF, INF, 6.0]), GOOD)
    assert found[0] == (
        "7 of 12 answers met the deadline of 12 s; how long the others took is not known: try "
        "--deadline 18"
    )


def test_waiting_for_somebody_who_is_gone() -> None:
    """Every round lasts 12 s for a client that is not there, where all others take 5 s."""
    found = told(GOOD, *[record("aad", [4.0, 5.0, INF])] * 4)
    assert found == [
        "4 of 5 rounds lasted until the deadline of 12 s, and every answer that came was there "
        "within 6 s: try --deadline 6.9",
        "cyn has not answered since round 2, and is not connected: see its log and start it again "
        "with the same key and cache, or continue with federation.without=['cyn']",
    ]
    found = told(GOOD, *[record("aad", [4.0, 5.0, INF])] * 4, killed={"cyn": 1})
    assert found[1:] == ["cyn was killed after round 1, as --kill said"]


def test_who_never_answered() -> None:
    found = told(*[record("aal", [4.0, 5.0, INF])] * 3)
    assert found[1].startswith("cyn never answered: see its log")
    assert not any("ada" in sentence for sentence in found)


def test_a_single_missed_round_is_no_absence() -> None:
    found = told(GOOD, GOOD, GOOD, record("aal", [4.0, 5.0, INF]))
    assert not any("cyn" in sentence for sentence in found)


def test_who_is_late_again_and_again() -> None:
    late = record("aal", [4.0, 5.0, INF], late_answers=((2, 15.0),))
    found = told(late, late, late, GOOD)
    assert "cyn was late in 3 of 4 rounds; its answers took about 15 s" in found


def test_who_is_refused_again_and_again() -> None:
    bad = record("aar", [4.0, 5.0, INF], seconds=5.0)
    found = told(bad, bad, GOOD)
    assert found == [
        "answers of cyn were refused in 2 of 3 rounds (too far off): see its data, or continue "
        "with federation.without=['cyn']"
    ]
    assert told(bad, GOOD, GOOD) == []


def test_the_time_after_a_client_was_last_heard_of_counts_for_nothing() -> None:
    """A killed node is late until the engine notices: the deadline is not to blame."""
    conduct = Conduct([GOOD, *[record("aal", [4.0, 5.0, INF])] * 6], NAMES, {})
    assert conduct.in_time == (15, 15)
    assert conduct.nine_in_ten == 5.0
    assert conduct.suggested == 5.8


def test_nothing_is_said_of_clients_that_were_not_waited_for() -> None:
    """Two answers are enough in every round: the third client has no chance to answer."""
    enough = record("aal", [0.04, 0.05, INF], deadline=60.0, seconds=0.05)
    assert told(*[enough] * 9) == []
    conduct = Conduct([enough] * 9, NAMES, {})
    assert conduct.in_time == (18, 18)
    assert conduct.missing == {}
    gone = record("aad", [0.04, 0.05, INF], deadline=60.0, seconds=0.05)
    assert told(enough, gone)[0].startswith("cyn never answered, and is not connected")


def test_an_answer_is_due_a_deadline_after_its_question() -> None:
    """Rounds of 5 s, and the same question open in all of them: after 12 s it is overdue."""
    busy = record("aal", [4.0, 5.0, INF], seconds=5.0, busy=(2,))
    first = record("aal", [4.0, 5.0, INF], seconds=5.0)
    overdue = Conduct([first, busy, busy, busy], NAMES, {}).overdue
    assert np.argwhere(overdue).tolist() == [[2, 2], [3, 2]]
    assert not Conduct([first] * 4, NAMES, {}).overdue.any()  # asked anew every time
    assert told(GOOD, first, busy) == []
    assert told(GOOD, first, busy, busy, busy)[-1].startswith("cyn has not answered since round 2")


def test_refused_answers_do_not_lengthen_the_deadline() -> None:
    refused = record("arr", [11.0, INF, INF], seconds=11.0)
    found = told(*[refused] * 4)
    assert not any("--deadline" in sentence for sentence in found)
    assert Conduct([refused] * 4, NAMES, {}).in_time == (4, 4)
