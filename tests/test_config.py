from importlib.resources import files
from pathlib import Path

import pytest

from codedfedl import InputError
from codedfedl.experiments import built_in, named_experiment
from codedfedl.runs.documents import parse_overrides, read_experiment
from codedfedl.schemes import settings_of

_FILES = sorted(files("codedfedl.experiments").iterdir(), key=lambda file: file.name)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(text, "utf-8")
    return path


def test_defaults_and_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, 'seeds = [3]\n[data]\nname = "mnist"\n[[schemes]]\nname = "uncoded"\n')
    changes = {"training.epochs": 7, "data.name": "digits", "fleet.k1": 0.5, "seeds": [1, 2]}
    texts = ["training.epochs=7", "data.name=digits", "fleet.k1=0.5", "seeds=[1, 2]"]
    assert parse_overrides(texts) == changes
    experiment = read_experiment(path, changes)
    assert experiment.training.epochs == 7
    assert experiment.data.name == "digits"
    assert experiment.fleet.k1 == 0.5
    assert experiment.seeds == [1, 2]
    assert (experiment.features.n_components, experiment.features.sigma) == ("auto", "auto")
    assert (experiment.training.step, experiment.ridge(50)) == ("auto", 1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nnam = 'mnist'\n", "unknown key 'data.nam': did you mean 'name'"),
        ("[trainig]\nepochs = 1\n", "unknown key 'trainig': did you mean 'training'"),
        ("[training]\nepochs = 0\n", "training.epochs is 0: must be at least 1"),
        ("[training]\nepochs = 'many'\n", "training.epochs is 'many': write a whole number"),
        ("[fleet]\nerasure = 1.0\n", "fleet.erasure is 1.0: must be below 1"),
        ("[data]\npartition = 'random'\n", "is 'random': must be 'sorted', 'iid' or 'dirichlet'"),
        ("[[schemes]]\nname = 'coded'\nredundance = 0.1\n", "did you mean 'redundancy'"),
        ("[[schemes]]\nname = 'codet'\n", "scheme 'codet' is unknown: did you mean 'coded'"),
        ("[[schemes]]\nname = 'uncoded'\n[[schemes]]\nname = 'uncoded'\n", "the same name"),
        ("schemes = []\n", "schemes: there is none"),
        ("seeds = []\n", r"seeds is \[\]: must have 1 or more entries"),
        ("seeds = [-1]\n", "seeds.0 is -1"),
        ("seeds = 3\n", "seeds is 3: write a list"),
        ("data = 3\n", "data is 3: write a table"),
        ("[training]\nstep = 'x'\n", "training.step is 'x': write a number, or 'auto'"),
        ("[training]\nstep = -1\n", "training.step is -1: must be above 0, or 'auto'"),
        ("[data]\nname = 3\n", "data.name is 3: write text in quotes"),
        ("[features]\nkind = 'fourir'\n", "is 'fourir': did you mean 'fourier'"),
        ("[federation]\nrounds = 3\n", "federation.clients is missing: add it"),
        ("[fleet]\nname = 'a.csv'\nclients = 7\n", "fleet.clients is 7, but the fleet is a.csv"),
        ("seeds = \n", "cannot read .*experiment.toml"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_experiment(write(tmp_path, text))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "has no '='"),
        ("training.epoch=3", "unknown key 'training.epoch': did you mean 'epochs'"),
        ("title.x=3", "title is not a table"),
        ("fleet={name='a.csv', k1=0.5}", "^--set fleet.k1 is 0.5, but the fleet is a.csv"),
        ("training.epochs=0", "^--set training.epochs is 0: "),
        ("fleet={k1=0.5, k2=7}", "^--set fleet.k2 is 7: "),
        (
            "trainings.epochs=3",
            "^--set trainings.epochs: unknown key 'trainings': did you mean",
        ),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, message: str) -> None:
    """An error names the option, where a user gave the value, and the file otherwise."""
    path = write(tmp_path, "title = 'x'\n")
    with pytest.raises(InputError, match=message):
        named_experiment(str(path), parse_overrides([override]))


def test_keys_that_a_fleet_file_decides_are_not_ignored(tmp_path: Path) -> None:
    """In the file, by --set, and at the default; a file that is chosen by --set has the say."""
    path = write(tmp_path, "[fleet]\nname = 'paper'\nclients = 7\nslower = 2.0\n")
    fleet = named_experiment(str(path), {"fleet.name": "a.csv"}).fleet
    assert (fleet.name, fleet.clients, fleet.slower) == ("a.csv", None, 2.0)
    with pytest.raises(InputError, match="^--set fleet.clients is 30, but the fleet is a.csv"):
        named_experiment(str(path), {"fleet.name": "a.csv", "fleet.clients": 30})
    written = write(tmp_path, "[fleet]\nname = 'a.csv'\nclients = 30\n")  # as in a config.toml
    assert read_experiment(written).fleet.name == "a.csv"


def test_a_mistake_in_the_file_is_not_blamed_on_an_option(tmp_path: Path) -> None:
    path = write(tmp_path, "[fleet]\nk1 = 2.0\n")
    with pytest.raises(InputError, match=r"^.*experiment.toml: fleet.k1 is 2.0: "):
        named_experiment(str(path), {"fleet.k2": 0.5})


def test_values_are_not_made_text_and_read_again(tmp_path: Path) -> None:
    """A folder may have a name that TOML would read as a number, or not at all."""
    path = write(tmp_path, "title = 'x'\n")
    for name in ("1e5", 'a"b', "true", " x "):
        assert read_experiment(path, {"fleet.name": name}).fleet.name == name


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_experiment(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "name", [file.name.removesuffix(".toml") for file in _FILES if file.name.endswith(".toml")]
)
def test_built_in_experiments_are_valid(name: str) -> None:
    schemes = built_in(name).build_schemes()
    assert schemes


def test_the_papers_settings() -> None:
    experiment = built_in("table1-mnist")
    assert (experiment.features.n_components, experiment.features.sigma) == (2000, 5.0)
    assert (experiment.fleet.clients, experiment.fleet.k1, experiment.fleet.k2) == (30, 0.95, 0.8)
    training = experiment.training
    assert (training.step, training.decay, training.decay_epochs) == (6.0, 0.8, [40, 65])
    assert (training.ridge, training.target, experiment.data.batches) == (9e-6, 0.942, 5)


def test_the_settings_of_a_scheme_are_those_that_can_be_given() -> None:
    assert settings_of("centralised") == []
    known = ["redundancy", "code", "nonzeros", "deadline", "optimiser", "planned", "excess"]
    known += ["server_rate", "server_alpha"]
    assert settings_of("coded") == [*known, "replan", "stand_in"]
