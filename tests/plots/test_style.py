"""What all figures share, and the table of figures."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib
import pytest
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.text import Text

from pacbayes_fl import plots
from pacbayes_fl.errors import PacBayesFLError, StudyError
from pacbayes_fl.plots import FIGURES, NothingToDrawError, learning_curve, particle_ablation, save_all, save_joint
from pacbayes_fl.plots.style import metric_label, target_label
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun
from pacbayes_fl.results.recorded import with_unit
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord
from tests.hostile import NAMES

pytestmark = pytest.mark.filterwarnings("error")


REGRESSION = ("predictions", "learning", "diagnostics", "clients", "calibration", "pit", "coverage")
CLASSIFICATION = ("learning", "diagnostics", "clients", "reliability", "uncertainty")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_every_figure_is_written_and_the_same_each_time_whatever_the_user_s_settings_which_stay(
    task: str, made: Callable[..., Result], classes: Callable[..., Result], tmp_path: Path
) -> None:
    assert set(REGRESSION) | set(CLASSIFICATION) == set(FIGURES)
    result = made(existing=2, new=1) if task == "regression" else classes(existing=2, new=1)
    endings = ("svg",) if task == "regression" else ("png", "svg")  # two formats of one drawing, once
    written = save_all(result, tmp_path / "figures", *([endings] if task == "regression" else []))
    figures = REGRESSION if task == "regression" else CLASSIFICATION
    names = [f"{name}.{ending}" for name in figures for ending in endings]
    assert [path.relative_to(tmp_path / "figures").as_posix() for path in written] == names
    for path in written:
        assert path.read_bytes()[:5] == (b"\x89PNG\r" if path.suffix == ".png" else b"<?xml")
    assert [path.name for path in sorted((tmp_path / "figures").iterdir())] == sorted(names)
    ending = "svg" if task == "regression" else "png"
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "lines.linewidth": 9}):
        settings = dict(matplotlib.rcParams)
        again = save_all(result, tmp_path / "again", [ending])  # whatever else was written before
        assert dict(matplotlib.rcParams) == settings
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written if path.match(f"*.{ending}")]


@pytest.mark.usefixtures("names_only")
def test_figures_without_numbers_are_left_out(result: Result, tmp_path: Path) -> None:
    part = replace(result, predictions={}, rounds=())
    assert [path.name for path in save_all(part, tmp_path, ["png"])] == ["clients.png"]
    assert save_all(replace(part, clients=()), tmp_path / "none") == []
    with pytest.raises(StudyError, match="got bmpx"):
        save_all(result, tmp_path, ["png", "bmpx"])


PAIR = ["box_plots.png", "intervals.png"]  # of several methods


@pytest.mark.usefixtures("names_only")
def test_the_ablation_is_of_a_method_not_between_methods(
    made: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[tuple[str, int]]] = []

    def ablation(results: Sequence[Result]) -> Figure:
        drawn.append([(result.method, result.labels["particles"]) for result in results])
        return particle_ablation(results)

    monkeypatch.setattr(plots, "particle_ablation", ablation)
    few = partial(made, existing=2, new=1)
    four, one, two = few("pac_pfl"), few("pfedgp", particles=1), few("pac_pfl", particles=2)
    without = replace(few("fedavg"), labels={})
    assert [path.name for path in save_joint([four, one, without], tmp_path, ["png"])] == PAIR
    joint = save_joint([four, one, two, without, replace(four, labels={})], tmp_path, ["png"])
    assert [path.name for path in joint] == [*PAIR, "particles.png"]
    assert drawn == [[("pac_pfl", 4), ("pac_pfl", 2)]]
    others = [replace(run, labels={**run.labels, "settings": {"method.tau": n}}) for n, run in enumerate((four, two))]
    assert [path.name for path in save_joint(others, tmp_path / "others", ["png"])] == PAIR, "tau differs as well"


@pytest.mark.usefixtures("names_only")
def test_classifiers_have_joint_figures_of_the_rounds(classes: Callable[..., Result], tmp_path: Path) -> None:
    dense = [classes("fedavg", seed, existing=2, new=1) for seed in (1, 2)]
    assert [path.name for path in save_joint(dense, tmp_path, ["png"])] == ["box_plots.png", "convergence.png"]


@pytest.mark.slow
def test_joint_figures_of_classifiers(classes: Callable[..., Result], tmp_path: Path) -> None:
    few = partial(classes, existing=2, new=1)
    dense = [few("fedavg", seed) for seed in (1, 2)]
    sparse = [few("sfedbayes", seed, kept=kept, level=kept) for kept in (0.25, 0.75) for seed in (1, 2)]
    files = save_joint([*dense, *sparse], tmp_path, ["svg"])
    assert [path.stem for path in files] == [*(Path(name).stem for name in PAIR), "convergence", "sparsity"]
    again = save_joint([*dense, *sparse], tmp_path / "again", ["svg"])
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in files]


@pytest.mark.law
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("groups", [(1, 0), (0, 2), (3, 1)])
def test_every_axis_is_labelled_for_any_number_of_clients(
    name: str, groups: tuple[int, int], made: Callable[..., Result], classes: Callable[..., Result]
) -> None:
    drawn = 0
    for maker in (made, classes):
        try:
            figure = FIGURES[name](maker(existing=groups[0], new=groups[1]))
        except NothingToDrawError:
            continue
        drawn += 1
        labelled = [bool(axis.get_xlabel() and axis.get_ylabel()) for axis in figure.axes]
        assert any(labelled) if name == "uncertainty" else all(labelled)  # small multiples share their outer labels
        figure.canvas.draw()
    assert drawn == (2 if name in ("learning", "diagnostics", "clients") else 1)


def test_words_on_axes(result: Result) -> None:
    assert with_unit("x", "1") == with_unit("x", "") == "x"
    assert target_label(result) == "power (kW)"
    assert metric_label("crps_raw", result) == "CRPS (kW)"
    assert metric_label("crps", result) == "CRPS (standard deviations of the client's targets)"
    assert metric_label("nlpd", result) == "NLPD (nats per row)"
    assert metric_label("nlpd_raw", result) == "NLPD (nats per row, of targets in kW)"
    assert metric_label("seconds", result) == "time (s)"
    assert metric_label("pm.own_score", result) == "own score, personal model"
    assert metric_label("gm.mean_weights.ece", result) == (
        "expected calibration error (10 bins), global model, at the mean weights"
    )
    finer = replace(result, labels={**result.labels, "calibration_bins": 20})
    assert metric_label("pm.mce", finer) == "maximum calibration error (20 bins), personal model"
    assert metric_label("validation.pm.accuracy", result) == "accuracy, validation rows, personal model"


def test_missing_matplotlib_says_what_to_install(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PacBayesFLError, match=r"pip install 'pacbayes_fl\[plots\]'"):
        learning_curve(result)
    with pytest.raises(PacBayesFLError, match="matplotlib"):
        save_all(result, "nowhere")


@pytest.mark.slow
def test_importing_the_room_does_not_import_matplotlib_and_drawing_nothing_of_pyplot() -> None:
    code = (
        "import sys, pacbayes_fl.plots; assert 'matplotlib' not in sys.modules; "
        "sys.path.insert(0, 'tests/plots'); from conftest import make_result; "
        "from conftest import make_classes; from pacbayes_fl import plots; "
        "of_classes = ('reliability', 'uncertainty'); "
        "from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun; "
        "few = {'existing': 2, 'new': 1}; "
        "[draw((make_classes if name in of_classes else make_result)(**few)) for name, draw in plots.FIGURES.items()]; "
        "[draw([make_classes(kept=0.5, **few)]) for draw in (plots.convergence_curves, plots.sparsity_curve)]; "
        "one = CertifiedClient('a', 'new', 1, 0.1, 0.2, 0.3, 0.4, 1); "
        "plots.certificates.figure(CertifiedRun('s', 'm', 1, 'b', 't', 'r', 0.0, 1.0, 0.1, (one,))); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# names ----------------------------------------------------------------------------------------------------------


def hostile(result: Result, nth: int) -> Result:
    """Give everything in a result that has a name another one, bad."""
    bad = [f"{name}{nth}" for name in NAMES.values()]
    names = {row.name: bad[k % len(bad)] for k, row in enumerate(result.clients)}

    def renamed(record: RoundRecord) -> RoundRecord:
        shares = {f"entropy.{names[key.removeprefix('entropy.')]}": value for key, value in record.histograms.items()}
        return replace(record, dropped=tuple(names[name] for name in record.dropped), histograms=shares)

    labels = {**result.labels, "target_name": bad[0], "target_unit": bad[20], "particles": 4 + nth}
    labels |= {"feature_name": bad[:2], "feature_unit": bad[2:4], "kept": 0.1 * (1 + nth)}
    labels["varied"] = {"key": "method.$\\frac{1}$", "value": bad[-3 - nth], "method": "a$b$"}
    return replace(
        result,
        study="".join(NAMES.values()),
        method=NAMES["mathematics"] if nth else NAMES["escape sequence"],
        rounds=tuple(map(renamed, result.rounds)),
        clients=tuple(replace(row, name=names[row.name]) for row in result.clients),
        labels=labels,
    )


def certified(result: Result) -> Figure:
    lines = tuple(CertifiedClient(row.name, row.group, 9, 0.1, 1.0, 0.4, 0.2, 9) for row in result.clients)
    run = CertifiedRun(result.study, result.method, 0, "seeger", "theorem", "risk", 0.0, 1.0, 0.05, lines)
    return plots.certificates.figure(run)


ALONE = {**FIGURES, "certificates": certified}
JOINT = {
    name: getattr(plots, name) for name in plots.__all__ if name.endswith(("_plot", "plots", "curves", "ablation"))
}
JOINT |= {"sparsity": plots.sparsity_curve, "sweep": plots.sweep_curve}


def assert_literal(figure: Figure) -> None:
    """Every text that matplotlib will draw is no formula, prints, and is short enough to leave room for the axes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # ideographs that the font has not
        figure.draw_without_rendering()
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert any(r"\$" in text or "\\x" in text or "\u2026" in text for text in texts)  # the names are in it
    for text in texts:
        assert all(line.isprintable() and len(line) <= 110 for line in text.split("\n")), text
        assert not is_math_text(text), text
    for axis in figure.axes:
        assert axis.get_window_extent().width > 20


@pytest.mark.law
@pytest.mark.parametrize("name", ALONE)
def test_no_name_is_mathematics_in_a_figure(
    name: str, made: Callable[..., Result], classes: Callable[..., Result]
) -> None:
    drawn = 0
    for made_result in (made(d=1), made(d=2), classes()):
        try:
            figure = ALONE[name](hostile(made_result, 0))
        except NothingToDrawError:
            continue
        assert_literal(figure)
        drawn += 1
    assert drawn


@pytest.mark.law
@pytest.mark.parametrize("name", JOINT)
def test_no_name_is_mathematics_in_a_joint_figure(
    name: str, made: Callable[..., Result], classes: Callable[..., Result]
) -> None:
    drawn = 0
    for make in (made, classes):
        try:
            figure = JOINT[name]([hostile(make(seed=seed), nth) for seed, nth in ((1, 0), (1, 1), (2, 0), (2, 1))])
        except NothingToDrawError:
            continue
        assert_literal(figure)
        drawn += 1
    assert drawn
