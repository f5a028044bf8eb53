"""Phrases that we no longer use, in documents and in the package."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
INSTEAD = {
    "whose each point is": "assign points to clients",
    "what came of it": "results",
    "go on with `--resume`": "continue with `--resume`",
    "in the mean": "on average",
    "if not said": "by default",
    "is no run directory": "is not a run directory",
    "who was late too": "include late clients",
    "refuses what is no": "raises InputError for an unknown …",
    "everything charged": "counting set-up as well as training time",
    "say `pip": "run `pip",
    "show themselves": "display as tables",
    "the best knob in hindsight": "with its setting tuned in hindsight",
    "features that see": "image-patch features",
    "kept, follow and knew": "fixed, adaptive and oracle plans",
    "that no difference gives away": "whose differences reveal no single point",
    "what is lost is lost to the last": "losses are relative to …",
    "never answer for fewer": "refuse to answer over fewer",
    "no trace says": "not in the traces",
    "is called first": "is declared the winner",
    "nobody is known to be another": "no client differs significantly",
    "a number of rounds that is none": "a non-negative integer",
    "told_how_to_go_on": "with_resume_hint",
    "going on without": "continuing without",
    "go on until": "continue until",
    "goes on": "continues",
    "may go on": "may continue",
    "cannot go on": "cannot continue",
    "of one's own": "of your own",
    "what became of": "the outcome of",
    "for ever": "forever",
    "so many times": "this many times",
    "are got": "are fetched",
    "was heard of": "answered",
    "whose each": "the column of the clients",
    "was begun last": "the latest",
    "what becomes of it": "its outcome",
    "be it": "even",
    "by lot": "at random",
    "never be heard": "never count",
    "all in all": "in total",
    "is no matter": "does not matter",
    "in want of": "needs",
}
"""A phrase, and what to write instead; more are in the style of the project than can be listed."""


def pages() -> Iterator[Path]:
    yield from (path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md")
    yield from ROOT.glob("docs/**/*.md")
    yield from ROOT.glob("benchmarks/*.md")
    for suffix in ("py", "toml", "j2", "js"):
        yield from (p for p in ROOT.glob(f"src/**/*.{suffix}") if not p.name.startswith("uPlot"))


def phrases_in(text: str) -> list[str]:
    """Return those that are no longer used, wherever a line ends."""
    words = re.sub(r"\n\s*(?:# ?|\* )?", " ", text.lower())
    return [p for p in INSTEAD if re.search(rf"(?<![\w,.]){re.escape(p.lower())}(?!\w)", words)]


def test_no_page_uses_a_phrase_that_we_no_longer_use() -> None:
    used = [
        f"{path.relative_to(ROOT)}: {phrase!r}: {INSTEAD[phrase]}"
        for path in pages()
        for phrase in phrases_in(path.read_text("utf-8"))
    ]
    assert not used, "\n".join(used)


def test_no_page_has_one_of_several() -> None:
    """Nouns agree with their numbers; `count_of` writes both where the number is not known."""
    nouns = "node|client|round|answer|seed|point|row|second|minute|hour|device|machine"
    wrong = [
        f"{path.relative_to(ROOT)}: {match[0]!r}"
        for path in pages()
        for match in re.finditer(rf"(?<![\w.,:=/(-])1 ({nouns})s\b", path.read_text("utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_phrase_is_noticed_across_lines() -> None:
    assert phrases_in("It takes 3 hours in\n# the mean.") == ["in the mean"]
    assert phrases_in("11 rounds and in the meantime") == []
