"""A study: everything that a run depends on, as frozen values, from a TOML file and back."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pacbayes_fl import settings
from pacbayes_fl.data import images
from pacbayes_fl.data.scaling import ColumnScale
from pacbayes_fl.errors import PrivacyError, StudyError, shown
from pacbayes_fl.federation.engine import FederationPlan
from pacbayes_fl.methods import METHODS, HeldOut, Recipe
from pacbayes_fl.noise import Engine
from pacbayes_fl.privacy.mechanisms import CohortKind, Kind, Neighbours
from pacbayes_fl.results import SIMULATED_EPSILON
from pacbayes_fl.server.robust import Aggregate
from pacbayes_fl.study_listing import BUNDLED
from pacbayes_fl.study_model import MODELS, ModelPart, NetworkPart, check_task

_LEAST: Final = 1e-8  # epsilon for which accounts are computed, and the inverse of the largest


@dataclass(frozen=True)
class DataPart:
    """Table [data].

    Args:
        source: a generator of `data_gen` ("polynomial", "pv-ew", "pv-s"); images ("mnist", "fashion-mnist", "cifar10",
            "femnist", and with "-inverted" or "-rotated" behind the name); or the path of an .npz, .csv or .parquet
            file, relative to the study's. Environment variables are expanded.
        options: what the generator is given, "none" for None; of images, fields of `data.images.ImageOptions`.
        follow_seed: give the generator the run's seed, so that every seed is a new draw of the data too.
        task: "classification" where the targets of a table are labels 0, 1, 2, ...; images and .npz files say so
            themselves.
        client: name of the client column of a table.
        target: name of the target column of a table.
        time: name of the column of times of a table: ISO 8601 dates or datetimes, or numbers. Rows are sorted by it
            within clients; it is no feature. Without one the order of the file is taken for that of time.
        test_share: share of each client's last rows held out from a table without a `split` column.
        duplicate_rows: "refuse" a test row that equals a training row of its client in every number (a leak, usually),
            and a row kept for certificates that does, or "allow" it, for discrete data in which that happens by chance.
            Of images the positions are compared instead: the published sets hold some images twice. Rows of different
            times are different rows.
        scale: units in which methods see the columns: standardised by each "client"'s training rows, where a feature
            that is constant inside clients and different between them is scaled across clients; "pooled", by those of
            all existing clients together; or "none", the data's own. Labels and images are left as they are.
        column_scale: the same by name of a feature or of the target, for those that differ, such as
            { capacity = "pooled", y = "none" }.
    """

    source: str = "polynomial"
    options: Mapping[str, Any] = field(default_factory=dict)
    follow_seed: bool = False
    task: Literal["auto", "classification"] = "auto"
    client: str = "client"
    target: str = "y"
    time: str | None = None
    test_share: float = 0.25
    duplicate_rows: Literal["refuse", "allow"] = "refuse"
    scale: ColumnScale = "client"
    column_scale: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse words that are no way to scale a column, and a column that would be two things."""
        if not 0 < self.test_share < 1:
            raise StudyError(f"[data] test_share must be between 0 and 1, got {self.test_share:g}")
        if self.time is not None and self.time in (self.client, self.target, "split", "group"):
            raise StudyError(f"[data] time must be a column of its own, got {self.time!r}")
        for name, kind in self.column_scale.items():
            if kind not in get_args(ColumnScale):
                known = ", ".join(map(repr, get_args(ColumnScale)))
                raise StudyError(f"[data] column_scale of {name!r} must be one of {known}, got {shown(kind)}")


@dataclass(frozen=True)
class MethodPart:
    """Table [method]: a name of `METHODS`, a preset, and the method's own options."""

    name: str = "pac-pfl"
    preset: str = "recommended"
    options: Any = None


@dataclass(frozen=True)
class FederationPart:
    """Table [federation]: fields of `federation.engine.FederationPlan`, and where and how to run.

    `train = "all"` lets clients outside of the cohort train too; what they learn stays with them.
    `aggregate = "clipped"` is to be had where clients may be broken or hostile; others are in the plan's fields.

    Args:
        device: "auto" takes CUDA where there is one.
        threads: threads of torch; its own choice when None.
        checkpoint_every: rounds between two checkpoints; a private run has one after every release.
    """

    rounds: int = 400
    cohort: int | None = None
    train: Literal["cohort", "all"] = "cohort"
    aggregate: Aggregate = "mean"
    faulty: int | None = None
    clip_multiple: float | None = None
    on_bad_client: Literal["drop", "stop"] = "drop"
    min_clients: int = 1
    chunk: int = FederationPlan.chunk
    waste: float = FederationPlan.waste
    noise: Engine = "philox"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    checkpoint_every: int = 50
    diverges_at: float | None = FederationPlan.diverges_at

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing; the plan refuses the others."""
        if self.checkpoint_every < 1 or (self.threads is not None and self.threads < 1):
            raise StudyError("[federation] checkpoint_every and threads must be at least 1")


@dataclass(frozen=True)
class CertifyPart:
    """Table [report.certify]: what a run leaves for certificates, which has to be said before it begins.

    Args:
        scheme: "split" keeps some training rows of every client from the training; "folds" trains a hyper-posterior for
            every fold of clients without them, so that all their rows are left; "none" leaves clients that never
            train.
        share: of every client's training rows that "split" trains on.
        folds: number of folds.
        prior: of "split": what the client's own training rows made of its model, or what the server "global"ly knows.
        independent: whether the rows of a client are independent draws of its distribution, as bounds need them; None
            where the source is known to say so: images and polynomials are, series are not, files have to be declared.
        drawn_clients: whether clients, those of the training and new ones, are independent draws of one distribution of
            clients, as a bound on new clients needs them.
        tried: configurations among which somebody chose by the training rows before the study was written, as `tune`
            does; 1 for none.
        twins: share of a column's spread within clients by which two rows may differ in every column and still count as
            one under certificates: what rounding to single precision or to a few digits, or jitter, makes of a copy; 0
            for rows that are equal in every number. Copies that a column tells apart, such as a running number, are not
            found: leave such a column out.
        tables: number of tables of certificates that will be asked of the rows, in all runs on them: each gets an even
            share of delta, and further ones are refused. None where that is open: then the k-th has a share of
            1 / (k (k + 1)), which sums to 1.
    """

    scheme: Literal["none", "split", "folds"] = "none"
    share: float = 0.5
    folds: int = 4
    prior: Literal["personal", "global"] = "personal"
    independent: bool | None = None
    drawn_clients: bool = False
    tried: int = 1
    twins: float = 1e-4
    tables: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name, number in (("tried", self.tried), ("tables", self.tables)):
            if number is not None and number < 1:
                raise StudyError(f"[report.certify] {name} must be at least 1, got {number}")
        if not 0 <= self.twins < 1:
            raise StudyError(f"[report.certify] twins must be at least 0 and below 1, got {self.twins:g}")
        if not 0 < self.share < 1:
            raise StudyError(f"[report.certify] share must be strictly between 0 and 1, got {self.share:g}")
        if self.folds < 2:
            raise StudyError(f"[report.certify] folds must be at least 2, got {self.folds}")


@dataclass(frozen=True)
class ReportPart:
    """Table [report].

    Args:
        levels: confidence levels of the calibration error of regression (PAC-PFL, eq. 41), by name (`metrics.levels`).
        calibration_bins: equal bins of confidence on [0, 1] of a classifier's ECE, MCE and reliability diagram; 10 as
            in the public code of BPFed and FedSI, while PAC-PFL's calibration error (eq. 42) is the ECE with 20.
        evaluate_every: rounds between two scores of the learning curve; a tenth of the rounds when None.
        uncertainty_rounds: rounds, beside the last, after which a classifier's predictive entropy is recorded.
        certify: what is left for certificates.
        keep: "all", or "no-rows": the run folder keeps no rows of clients, nor predictions of them, which can give them
            away. Who goes on with the run, predicts or certifies reads them again from their source; fingerprints tell
            whether they are the same.
    """

    levels: Literal["paper", "pacoh"] = "paper"
    calibration_bins: int = 10
    evaluate_every: int | None = None
    uncertainty_rounds: tuple[int, ...] = (1, 10)
    certify: CertifyPart = field(default_factory=CertifyPart)
    keep: Literal["all", "no-rows"] = "all"

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("evaluate_every", "calibration_bins"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise StudyError(f"[report] {name} must be at least 1, got {value}")


@dataclass(frozen=True)
class PrivacyPart:
    """Table [privacy]; `epsilon` alone makes a run private, and a table without it is refused.

    Args:
        epsilon: of all releases of the run together, for whole clients; nothing is private when None, which a table has
            to say. In a simulation tables call it "epsilon_if_noise_were_secret".
        delta: 0.1 / N when None, for N clients; 0 for "laplace" and "knorm", which then keep pure epsilon. A run that
            goes on with fewer clients keeps the delta that it has begun with.
        mechanism: see `privacy.mechanisms.Mechanism`. "paper_algorithm_3" takes `epsilon` for what PAC-PFL claims and
            adds the noise that it prints; labels say what that gives.
        clip: largest norm of what a client sends in a round.
        cohort: how the `federation.cohort` clients of a round are drawn; None is "poisson" where that is given (for
            "paper_algorithm_3" "fixed") and "all" otherwise.
        neighbours: what the guarantee hides; None is "replace" where a cohort has a fixed size below N and for
            "paper_algorithm_3", and "add-or-remove", for a client that sends zeros instead, otherwise.
        multiplier: the noise's scale per clip, on the sum of a cohort; None takes the least that lasts for all rounds.
        randomness: of noise and cohorts. That of the "system" cannot be repeated; that of a "simulation" comes from the
            seed, and hides nothing from whoever knows it.
    """

    epsilon: float | None = None
    delta: float | None = None
    mechanism: Kind = "gaussian"
    clip: float = 1.0
    cohort: CohortKind | None = None
    neighbours: Neighbours | None = None
    multiplier: float | None = None
    randomness: Literal["system", "simulation"] = "system"

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("epsilon", "clip", "multiplier"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise PrivacyError(f"[privacy] {name} must be positive and finite, got {value:g}")
        if self.epsilon is not None and not _LEAST <= self.epsilon <= 1 / _LEAST:
            what = f"[privacy] epsilon must be from {_LEAST:g} to {1 / _LEAST:g}, got {self.epsilon:g}"
            raise PrivacyError(what, hint="noise for less leaves nothing to learn, and with more nothing is hidden")
        if self.delta is not None and not 0 <= self.delta < 1:
            raise PrivacyError(f"[privacy] delta must be in [0, 1), got {self.delta:g}")
        if self.mechanism == "paper_algorithm_3" and self.multiplier is not None:
            what = "[privacy] multiplier is not for paper_algorithm_3, whose noise is rounds / epsilon"
            raise PrivacyError(what, hint="change epsilon, or the mechanism")


_PARTS: tuple[tuple[str, type], ...] = (
    ("federation", FederationPart),
    ("report", ReportPart),
    ("privacy", PrivacyPart),
)


TEMPERATURE = HeldOut("temperature", lambda options: (), after=True)
"""What [model] may leave open, a number: of classifiers, the temperature of their predictions."""


@dataclass(frozen=True)
class Study:
    """Everything that a run depends on.

    Args:
        name: what tables and folders call it.
        seed: of every random draw of the run.
    """

    name: str = "study"
    seed: int = 0
    data: DataPart = field(default_factory=DataPart)
    model: ModelPart | NetworkPart = field(default_factory=ModelPart)
    method: MethodPart = field(default_factory=MethodPart)
    federation: FederationPart = field(default_factory=FederationPart)
    report: ReportPart = field(default_factory=ReportPart)
    privacy: PrivacyPart = field(default_factory=PrivacyPart)

    @property
    def recipe(self) -> Recipe:
        """What the library knows of the study's method."""
        return METHODS[self.method.name]

    @property
    def held_out(self) -> tuple[HeldOut, ...]:
        """What is still to be chosen by held-out training rows: options of the method, and the temperature."""
        options = self.method.options
        asked = [one for one in self.recipe.held_out if getattr(options, one.option) == "held-out"]
        tempering = isinstance(self.model, NetworkPart) and self.model.temperature == "held-out"
        return (*asked, TEMPERATURE) if tempering else tuple(asked)

    @property
    def plan(self) -> FederationPlan:
        """The study's federation as the engine takes it; one round where there is nothing to repeat."""
        names = FederationPlan.__dataclass_fields__.keys() & FederationPart.__dataclass_fields__.keys()
        plan = FederationPlan(seed=self.seed, **{name: getattr(self.federation, name) for name in names})
        return plan if self.recipe.rounds else replace(plan, rounds=1)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str = "study", sets: Sequence[str] = ()) -> Study:
        """Build a study from a nested table.

        Values are looked for, in this order, in `sets`, in the table's part for the chosen method ([methods.NAME.PART],
        what `tune` writes), in the table itself, in the preset, and in the defaults. Where `sets` choose another method
        or source of data than the table, the table's [method] or [data], which is not for that one, does not count;
        nor does its [model] where one of the methods is on functions and the other on networks.

        Args:
            table: parts by name.
            where: what errors call the table.
            sets: assignments such as "method.tau=0.5".

        Returns:
            The study, every value resolved.

        Raises:
            StudyError: naming an unknown key or method, where it stands, and the nearest valid one; or when the method
                cannot learn what the data hold.
            PrivacyError: when there is a [privacy] table without a budget.
        """
        table, given = (_budgeted(each, where) for each in assigned(table, sets))
        full = settings.merge(table, given)
        tables = ("data", "model", "method", "methods", *(name for name, _ in _PARTS))
        valid = ("name", "seed", *tables)
        for key, value in full.items():
            if key not in valid:
                raise StudyError(f"{where}: unknown key {shown(key)}", hint=settings.nearest(key, valid))
            if key in tables and not isinstance(value, Mapping):
                raise StudyError(f"{where}: {key} must be a table, got {shown(value)}", hint=f"set {key}.KEY to VALUE")
        chosen = full.get("method", {})
        name, preset = chosen.get("name", "pac-pfl"), chosen.get("preset", "recommended")
        methods = full.get("methods", {})
        for known in (str(name), *methods):
            if known not in METHODS:
                raise StudyError(f"{where}: unknown method {shown(known)}", hint=settings.nearest(known, METHODS))
        recipe = METHODS[name]
        if str(preset) not in recipe.presets:
            raise StudyError(
                f"{where}: unknown preset {shown(preset)}", hint=settings.nearest(str(preset), recipe.presets)
            )
        for known, own in methods.items():
            _check_own(known, own, f"{where} [methods.{known}")
        base = settings.merge(settings.merge(recipe.presets[preset], table), methods.get(name, {}))
        layered = settings.merge(base, given)
        options = {key: value for key, value in layered.get("method", {}).items() if key not in ("name", "preset")}
        data = settings.parse(DataPart, layered.get("data", {}), f"{where} [data]")
        if data.task == "classification" or image_source(data.source):
            check_task(name, classification=True)
        parts: dict[str, Any] = {
            part: settings.parse(kind, layered.get(part, {}), f"{where} [{part}]")
            for part, kind in (*_PARTS, ("model", MODELS[recipe.model]))
        }
        _check_private(layered.get("privacy"), where)
        method = MethodPart(name, preset, settings.parse(recipe.options, options, f"{where} [method]"))
        seed = full.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise StudyError(f"{where} seed must be a whole number from 0 to 2**32 - 1, got {shown(seed)}")
        return cls(_name(full.get("name", where), where), seed, data, method=method, **parts)

    @classmethod
    def from_toml(cls, path: Path | str, sets: Sequence[str] = ()) -> Study:
        """Read a study from a TOML file, or a bundled one by its name.

        Args:
            path: the file, or a name such as "polynomial".
            sets: assignments such as "method.tau=0.5".

        Returns:
            The study.

        Raises:
            StudyError: when there is no such study or file, or as `from_table`.
        """
        return cls.from_table(*read_table(path), sets)

    def table(self) -> dict[str, Any]:
        """Give the study as a nested table of plain values, nothing implied.

        The epsilon of a simulation, which is nobody's privacy, has a name that says so.
        """
        table = settings.as_table(self)
        table["method"] = {"name": self.method.name, "preset": self.method.preset} | settings.as_table(
            self.method.options
        )
        if self.privacy.randomness == "simulation":
            part = table["privacy"]
            table["privacy"] = {SIMULATED_EPSILON if key == "epsilon" else key: part[key] for key in part}
        return table

    def to_toml(self) -> str:
        """Write the study as TOML, nothing implied."""
        return settings.to_toml(self.table())

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Say where the study's values differ from the preset "paper".

        Returns:
            Dotted key -> (the study's value, the paper preset's value).
        """
        mine = self.table()
        paper = Study.from_table({"method": {"name": self.method.name, "preset": "paper"}}).table()
        return {
            f"{part}.{key}": (mine[part][key], paper[part][key])
            for part in ("method", "model", "federation")
            for key in paper[part]
            if mine[part][key] != paper[part][key] and key not in ("preset", "device", "threads", "checkpoint_every")
        }


def _name(name: Any, where: str) -> str:
    """Take any text for a name that can be written, and that is not blank."""
    if not isinstance(name, str) or not name.strip() or name.encode(errors="ignore").decode() != name:
        raise StudyError(f"{where} name must be text, and not blank, got {shown(name)}")
    return name


def assigned(table: Mapping[str, Any], sets: Sequence[str]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Read assignments; where they choose another method or source of data, the table's part for its own is dropped.

    Args:
        table: of a study.
        sets: assignments such as "method.tau=0.5".

    Returns:
        What of the table still counts, and the nested table of the assignments, to be laid over it.

    Raises:
        StudyError: when an assignment has no "=".
    """
    given: dict[str, Any] = {}
    for assignment in sets:
        settings.override(given, assignment)
    given = _anchored(given, Path.cwd())
    for part, key, default in (("method", "name", "pac-pfl"), ("data", "source", DataPart.source)):
        before, after = table.get(part, {}), given.get(part, {})
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            chosen = before.get(key, default)
            if after.get(key, chosen) != chosen:
                dropped = (part, "model") if part == "method" and _model(chosen) != _model(after[key]) else (part,)
                table = {name: value for name, value in table.items() if name not in dropped}
    return table, given


def _budgeted(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Read the epsilon of a simulation, which has a name of its own: giving it asks for a simulation."""
    part = table.get("privacy")
    if not isinstance(part, Mapping) or SIMULATED_EPSILON not in part:
        return table
    if "epsilon" in part or part.get("randomness", "simulation") != "simulation":
        what = f"{where} [privacy] {SIMULATED_EPSILON} is the epsilon of a simulation alone"
        raise PrivacyError(what, hint="give privacy.epsilon instead, or privacy.randomness = 'simulation'")
    rest = {key: value for key, value in part.items() if key != SIMULATED_EPSILON}
    return {**table, "privacy": {"epsilon": part[SIMULATED_EPSILON], "randomness": "simulation"} | rest}


def _check_private(part: Any, where: str) -> None:
    """Refuse a [privacy] table that does not say how private: its other keys alone would train in the clear."""
    if isinstance(part, Mapping) and "epsilon" not in part:
        given = ", ".join(map(str, part)) or "nothing"
        what = f"{where} [privacy] gives {given} without epsilon, so that nothing would be private"
        raise PrivacyError(what, hint="set privacy.epsilon to a budget, or to 'none' to train without privacy")


def _model(method: Any) -> str | None:
    """Say what the model of a method is; nothing of a name that is not known."""
    recipe = METHODS.get(str(method))
    return None if recipe is None else recipe.model


def image_source(source: str) -> bool:
    """Whether a [data] source names images.

    Args:
        source: such as "mnist" or "mnist-inverted".

    Returns:
        True for a name of `data.images`.
    """
    return source in images.NAMES or source in [f"{name}-{kind}" for name in images.NAMES for kind in images.KINDS]


def _check_own(method: str, own: Any, where: str) -> None:
    """Check [methods.NAME], also of a method that is not the chosen one: a slip there would show only much later."""
    recipe = METHODS[method]
    kinds = {"method": recipe.options, "model": MODELS[recipe.model], **dict(_PARTS)}
    if not isinstance(own, Mapping):
        raise StudyError(f"{where}] must be a table, got {shown(own)}")
    for part, values in own.items():
        if part not in kinds:
            raise StudyError(f"{where}]: unknown part {part!r}", hint=f"valid: {', '.join(kinds)}")
        settings.parse(kinds[part], values, f"{where}.{part}]")


def read_table(path: Path | str) -> tuple[dict[str, Any], str]:
    """Read the table of a study.

    Args:
        path: a TOML file, or the name of a bundled study.

    Returns:
        The table, its `name` filled in, and what errors should call it.

    Raises:
        StudyError: when there is no such file or it is not TOML.
    """
    file = BUNDLED / f"{path}.toml" if (BUNDLED / f"{path}.toml").is_file() else Path(path)
    if not file.is_file():
        names = sorted(bundled.stem for bundled in BUNDLED.glob("*.toml"))
        raise StudyError(f"there is no study {str(path)!r}", hint=settings.nearest(str(path), names))
    try:
        table = settings.read_toml(file.read_text(encoding="utf-8"), file.name)
        if not table:
            raise StudyError(f"{file.name} is empty", hint="`list studies` names examples")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyError(f"{file.name} is not TOML: {error}") from error
    return {"name": file.stem} | _anchored(table, file.parent), file.name


def _anchored(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make relative paths of data files absolute: in a file they count from its folder, on a command line from here."""

    def anchored(key: str, value: Any) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise StudyError(f"[data] {key} must hold no NUL, got {shown(value)}")
        if not isinstance(value, str) or value.startswith(("/", "$", "~")) or value == settings.NONE:
            return value
        is_path = key == "root" or (key in ("source", "weather") and Path(value).suffix)  # a folder may have no suffix
        return str((folder / value).resolve()) if is_path else value

    data = table.get("data")
    if not isinstance(data, dict):
        return table
    data = {key: anchored(key, value) if key == "source" else value for key, value in data.items()}
    if isinstance(data.get("options"), dict):
        data["options"] = {key: anchored(key, value) for key, value in data["options"].items()}
    return table | {"data": data}
