"""No package but `schemes` knows a scheme: neither by its name nor by its state."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import codedfedl
from codedfedl.core.protocol import State
from codedfedl.schemes import SCHEMES

ROOT = Path(codedfedl.__file__).parent
ALLOWED = ("schemes", "experiments")
FILES = [
    path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in ALLOWED
]
NAMES = {name for name, scheme in SCHEMES.items() if scheme.__module__.startswith("codedfedl.")}
TEXT_TESTS = ("startswith", "endswith", "removeprefix", "removesuffix", "partition", "find")


def derived(kind: type[State]) -> set[str]:
    """Return the classes of the package that derive from a state."""
    below: list[type[State]] = kind.__subclasses__()
    own = {sub.__name__ for sub in below if sub.__module__.startswith("codedfedl.")}
    return own.union(*(derived(sub) for sub in below))


def constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return what is assigned at the top of a module: a name there may stand for schemes."""
    assigned: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            assigned |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            assigned[node.target.id] = node.value
    return assigned


def names_a_scheme(node: ast.expr, assigned: dict[str, ast.expr]) -> bool:
    named = [assigned[p.id] for p in ast.walk(node) if isinstance(p, ast.Name) and p.id in assigned]
    parts = [part for expression in (node, *named) for part in ast.walk(expression)]
    return any(isinstance(part, ast.Constant) and part.value in NAMES for part in parts)


def comparisons(tree: ast.Module) -> Iterator[int]:
    """Yield the lines in which something is compared with the name of a scheme."""
    assigned = constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            compared = node.args if node.func.attr in TEXT_TESTS else []
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        else:
            continue
        if any(names_a_scheme(part, assigned) for part in compared):
            yield node.lineno


def states(tree: ast.Module) -> Iterator[int]:
    """Yield the lines in which a scheme's own state is named."""
    forbidden = derived(State)
    for node in ast.walk(tree):
        named: set[str] = set()
        if isinstance(node, ast.ImportFrom):
            named = {alias.name for alias in node.names}
        elif isinstance(node, ast.Name):
            named = {node.id}
        elif isinstance(node, ast.Attribute):
            named = {node.attr}
        if named & forbidden:
            assert isinstance(node, ast.stmt | ast.expr)
            yield node.lineno


def lines(lint: Callable[[ast.Module], Iterator[int]]) -> list[str]:
    """Return the lines of the package to which a lint objects."""
    return [
        f"{path.relative_to(ROOT)}:{line}"
        for path in FILES
        for line in lint(ast.parse(path.read_text("utf-8")))
    ]


def test_no_file_compares_with_the_name_of_a_scheme() -> None:
    assert lines(comparisons) == []


def test_no_file_names_the_state_of_a_scheme() -> None:
    assert lines(states) == []


@pytest.mark.parametrize(
    "text",
    [
        'scheme == "coded"',
        'name in ("uncoded", other)',
        '"one-shot" != name',
        'label.startswith("uncoded")',
        '_SHOWN = ("coded", "greedy")\nscheme in _SHOWN',
        'match name:\n    case "fedavg":\n        pass',
    ],
)
def test_comparisons_are_detected(text: str) -> None:
    assert list(comparisons(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "from codedfedl.schemes.coded_state import CodedState",
        "isinstance(state, NewtonState)",
        "isinstance(state, coded.CodedState)",
    ],
)
def test_states_are_detected(text: str) -> None:
    assert list(states(ast.parse(text)))


def test_the_walk_sees_the_whole_package() -> None:
    assert len(FILES) > 90
    assert {"coded", "uncoded", "coded-newton"} <= NAMES
    assert {"CodedState", "NewtonState"} <= derived(State)
