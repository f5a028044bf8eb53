"""Names that say too little or mean two things, and what tests keep away from: rules for files."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent / "src" / "codedfedl"
VAGUE = {"found", "one", "own", "place", "told", "some"}


def files(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), path.read_text("utf-8")


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


def imports_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the whole name of everything that is imported, and its name in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = "" if isinstance(node, ast.Import) else f"{node.module}."
            yield from ((f"{module}{a.name}", a.asname or a.name) for a in node.names)


def private_members_in(tree: ast.AST) -> Iterator[str]:
    """Yield what a test imports, reads or patches of our code that an underscore keeps private."""
    ours = {name: whole for whole, name in imports_of(tree) if whole.startswith("codedfedl")}
    yield from (whole for whole in ours.values() if is_private(whole))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ours and is_private(node.attr):
                yield f"{ours[node.value.id]}.{node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            targets = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
            yield from filter(is_private, targets[:1])


def is_private(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.endswith("__")


def test_no_test_module_imports_another() -> None:
    """Helpers that tests share have modules of their own."""
    wrong = [
        f"{file} imports {whole}"
        for file, text in files(TESTS)
        for whole, _ in imports_of(ast.parse(text))
        if whole.startswith("tests.test_")
    ]
    assert not wrong


def test_tests_leave_private_members_alone() -> None:
    private = {file: [*private_members_in(ast.parse(text))] for file, text in files(TESTS)}
    assert not {file: names for file, names in private.items() if names}


def test_private_members_would_be_noticed() -> None:
    source = """
from codedfedl.data import _hidden, idx
monkeypatch.setattr(idx, "_LIMIT", 1)
patch.setattr("codedfedl.data.idx._NAMES", 1)
patch.setattr(idx, "__file__", "shown")
idx._read() + other._read()
"""
    noticed = set(private_members_in(ast.parse(source)))
    assert noticed == {
        *("codedfedl.data._hidden", "codedfedl.data.idx._read"),
        *("_LIMIT", "codedfedl.data.idx._NAMES"),
    }
