"""Names that say too little, or mean two things: one test for each rule, over all files."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "codedfedl"
VAGUE = {"found", "one", "own", "place", "told", "some"}


def files() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def names_set_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every local, parameter and field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_locals_parameters_and_fields_are_nouns() -> None:
    wrong = [
        f"{file}:{line}: {name}"
        for file, text in files()
        for line, name in names_set_in(ast.parse(text))
        if name in VAGUE
    ]
    assert not wrong, "name what it is: " + ", ".join(wrong)


def test_a_public_class_name_means_one_thing() -> None:
    folders = defaultdict(set)
    for file, text in files():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                folders[node.name].add(file.rpartition("/")[0])
    twice = {name: sorted(places) for name, places in folders.items() if len(places) > 1}
    assert not twice


def test_vague_names_would_be_noticed() -> None:
    source = "def f(one, *, some=1):\n    found = [place for place in one]\n    self.own: int = 1\n"
    assert {name for _, name in names_set_in(ast.parse(source))} - VAGUE == set()
