"""A study: everything that a run depends on, as frozen values, from a TOML file and back."""

from __future__ import annotations

import tomllib
import warnings
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pacbayes_fl import settings
from pacbayes_fl.data import tables
from pacbayes_fl.data.user_tables import TABLES, Task
from pacbayes_fl.errors import PrivacyError, StudyError, caller_stacklevel, kinds_checked, shown
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods import HeldOutChoice, Recipe
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.plugins.references import INSTANCE, read_again
from pacbayes_fl.results.metrics import Metric
from pacbayes_fl.results.records import SIMULATED_EPSILON
from pacbayes_fl.study.config import choices, keys, models, parts, sources
from pacbayes_fl.study.config import instances as study_instances
from pacbayes_fl.study.config.gp_model import GPModel
from pacbayes_fl.study.config.instances import NO_INSTANCES, Instances, Model
from pacbayes_fl.study.config.keys import PARTS
from pacbayes_fl.study.config.listing import BUNDLED
from pacbayes_fl.study.config.models import InstanceModel, NetworkModel
from pacbayes_fl.study.config.parts import DataPart, DeployPart, FederationPart, MethodPart, PrivacyPart, ReportPart
from pacbayes_fl.study.config.paths import anchored, with_references
from pacbayes_fl.study.config.plugins import METHODS, METRICS, check_task


@dataclass(frozen=True)
class Study:
    """Everything that a run depends on.

    Args:
        name: what tables and folders call it.
        seed: of every random draw of the run.
        instances: objects of a program that stand in for what the tables name; see `with_instances`.
        unsaid: values that nobody has asked for, of options whose default is another on rows of one's own.
    """

    name: str = "study"
    seed: int = 0
    data: DataPart = field(default_factory=DataPart)
    model: GPModel | NetworkModel | InstanceModel = field(default_factory=GPModel)
    method: MethodPart = field(default_factory=MethodPart)
    federation: FederationPart = field(default_factory=FederationPart)
    report: ReportPart = field(default_factory=ReportPart)
    privacy: PrivacyPart = field(default_factory=PrivacyPart)
    deploy: DeployPart = field(default_factory=DeployPart)
    instances: Instances = field(default=NO_INSTANCES, repr=False, compare=False)
    unsaid: JsonMapping = field(default_factory=dict, repr=False, compare=False)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the study's method."""
        return self.instances.recipes.get(self.method.name) or METHODS[self.method.name]

    @kinds_checked
    def with_instances(
        self,
        *,
        method: AnyMethod | None = None,
        model: Model | None = None,
        data: tables.Dataset | Mapping[str, Sequence[object]] | None = None,
        metrics: Sequence[Metric] = (),
    ) -> Study:
        """Put objects of a program in the places of what the study names; those given before stay beside them.

        Args:
            method: an instance of any subclass of `Method`, with its model and its options.
            model: a prior or a network, for the study's own method.
            data: a data set, or the rows of every client by name; see `data.tables.of_clients`, which holds the
                study's `data.test.share` of them out.
            metrics: records `Metric`, scored beside all built-in ones.

        Returns:
            The study, in which they are called "instance:" and their class; with data of one's own what it did not say
            has the same defaults as with a file of these rows.

        Raises:
            StudyError: when an object is of another kind, or the model is not of the kind that the method learns.
            DataError: as `data.tables.of_clients`.
        """
        if isinstance(data, Mapping):
            task: Task = "classification" if self.data.task == "classification" else "regression"
            data = tables.of_clients(data, self.data.test.share, task, self.data.classes)
        elif isinstance(data, tables.Dataset) and data.rows is not None:
            data = replace(data, rows=None)  # the folder keeps the rows: what they were made from may be gone
        given = Instances(method, model, data, tuple(metrics))
        changes: JsonTable = {"instances": (whole := given.beside(self.instances))}
        study = self
        if given.method is not None:
            study = choices.without_own_defaults(self)
            recipe = whole.recipes[given.method_name]
            changes["method"] = MethodPart(given.method_name, "recommended", recipe.options())
        elif given.model is not None and not isinstance(given.model, models.GIVEN[self.recipe.model]):
            what = f"model is of {type(given.model).__name__}, and {self.method.name} learns {self.recipe.model}"
            raise StudyError(what, hint="give a FunctionModel of functions, a WeightModel of weights")
        if given.method is not None or given.model is not None:
            changes["model"] = InstanceModel.of(given.model_kind, study.model)
        elif given.data is not None and self.instances.method is None and self.instances.model is None:
            study = choices.with_own_defaults(self)
        if given.data is not None:
            changes["data"] = replace(study.data, source=study_instances.DATA, options={}, follow_seed=False)
        if given.metrics:
            names = dict.fromkeys((*study.report.metrics, *given.metrics_by_name))
            changes["report"] = replace(study.report, metrics=tuple(names))
        return replace(study, **changes)

    def metric(self, name: str) -> Metric:
        """Look up a metric of [report] metrics.

        Args:
            name: as the table has it.

        Returns:
            The metric.
        """
        return self.instances.metrics_by_name.get(name) or METRICS[name]

    @property
    def held_out(self) -> tuple[HeldOutChoice, ...]:
        """Choices still to be made by held-out rows."""
        return choices.still_open(self)

    @property
    def plan(self) -> FederationPlan:
        """The study's federation as the engine takes it: one round where there is nothing to repeat.

        Where the number of rounds is still to be chosen, it is the largest that can be.
        """
        names = FederationPlan.__dataclass_fields__.keys() & FederationPart.__dataclass_fields__.keys()
        values = {name: getattr(self.federation, name) for name in names} | choices.rounds_of(self)
        return FederationPlan(seed=self.seed, **values)

    @classmethod
    @kinds_checked
    def from_table(
        cls,
        table: JsonMapping,
        where: str = "study",
        sets: Sequence[str] = (),
        instances: Instances = NO_INSTANCES,
    ) -> Study:
        """Build a study from a nested table.

        Values are looked for, in this order, in `sets`, in the table's part for the chosen method ([methods.NAME.PART],
        what `tune` writes), in the table itself, in the preset, and in the defaults. Where `sets` choose another method
        or kind of data than the table, the table's [method] or [data], which is not for that one, does not count, nor
        its [model] where one is on functions and one on networks, nor [methods.NAME] for another preset.

        Args:
            table: parts by name.
            where: what errors call the table.
            sets: assignments such as "method.tau=0.5".
            instances: objects that a program gives a study whose table was written with such.

        Returns:
            The study, every value resolved.

        Raises:
            StudyError: naming an unknown key or method, where it stands, and the nearest valid one; or when the method
                cannot learn what the data hold.
            PrivacyError: when there is a [privacy] table without a budget.

        Example:
            >>> from pacbayes_fl import Study
            >>> Study.from_table({"method": {"name": "ridge"}}).method.name
            'ridge'
        """
        read_again()
        return cls._resolved(table, where, sets, instances)

    @classmethod
    def _resolved(cls, table: JsonMapping, where: str, sets: Sequence[str], instances: Instances) -> Study:
        table, given = (_budgeted(each, where) for each in assigned(table, sets))
        table = anchored(with_references(table, Path.cwd()), Path.cwd())
        full = settings.merge(table, given)
        tables = ("data", "model", "method", "methods", *(name for name, _ in PARTS))
        valid = ("name", "seed", *tables)
        for key, value in (*table.items(), *full.items()):
            if key not in valid:
                raise StudyError(f"{where}: unknown key {shown(key)}", hint=settings.nearest(key, valid))
            if key in tables and not isinstance(value, Mapping):
                raise StudyError(f"{where}: {key} must be a table, got {shown(value)}", hint=f"set {key}.KEY to VALUE")
        chosen, methods = full.get("method", {}), full.get("methods", {})
        name, preset = chosen.get("name", "pac-pfl"), chosen.get("preset", "recommended")
        recipes = ChainMap({**instances.recipes}, METHODS)  # type: ignore[arg-type]
        for known in (str(name), *methods):
            if known not in recipes:
                if known.startswith(INSTANCE):
                    raise study_instances.refused(known, "[method] name")
                raise StudyError(f"{where}: unknown method {shown(known)}", hint=settings.nearest(known, METHODS))
        recipe = recipes[name]
        if str(preset) not in recipe.presets:
            hint = settings.nearest(str(preset), recipe.presets)
            raise StudyError(f"{where}: unknown preset {shown(preset)}", hint=hint)
        for known, own in methods.items():
            _check_own(known, own, f"{where} [methods.{known}")
        given_model = instances.method is not None or instances.model is not None
        usual = {part: values for part, values in recipe.presets[preset].items() if part != "model" or not given_model}
        tuned = methods.get(name, {})
        if preset != table.get("method", {}).get("preset", "recommended"):  # tuned for that one
            tuned = {part: tuned[part] for part in ("report",) if part in tuned}
        rest = {part: values for part, values in tuned.items() if part != "data"}
        common = settings.merge(settings.merge(table, rest), given)
        own = rest if preset == "paper" else tuned  # columns are tuned for recommended values
        stated = settings.merge(settings.merge(table, own), given)
        if preset == "recommended" and not given_model:
            usual = settings.merge(usual, choices.own_defaults(recipe, stated))
        layered = settings.merge(usual, stated)
        options = {key: value for key, value in layered.get("method", {}).items() if key not in ("name", "preset")}
        keys.check({**layered, "method": options}, recipe, where)
        data = settings.parse(DataPart, layered.get("data", {}), f"{where} [data]")
        classes = data.task == "classification" or getattr(sources.find(data.source), "classes", False)
        said = "name" in chosen or "source" in full.get("data", {})  # else a program may bring the method
        if classes and said and name in METHODS:
            check_task(name, "classification")
        parts: JsonTable = {
            part: settings.parse(kind, layered.get(part, {}), f"{where} [{part}]") for part, kind in PARTS
        }
        _check_metrics(parts["report"].metrics, f"{where} [report] metrics", instances)
        parts["model"] = _model_part(recipe, layered.get("model", {}), f"{where} [model]", instances)
        _check_private(layered.get("privacy"), where)
        if isinstance(parts["model"], GPModel):
            folds = parts["report"].certify.scheme == "folds"
            parts["model"] = parts["model"].settled(recipe, parts["privacy"].epsilon is not None, folds)
        method = MethodPart(name, preset, settings.parse(recipe.options, options, f"{where} [method] of {name}"))
        seed = full.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise StudyError(f"{where} seed must be a whole number from 0 to 2**32 - 1, got {shown(seed)}")
        parts |= {"instances": instances, "data": data, "method": method}
        if preset == "recommended" and not given_model:
            parts["unsaid"] = choices.unsaid(recipe, common, parts)
        return cls(_name(full.get("name", where), where), seed, **parts)

    @classmethod
    @kinds_checked
    def from_toml(cls, path: Path | str, sets: Sequence[str] = ()) -> Study:
        """Read a study from a TOML file, or a bundled one by its name.

        Args:
            path: the file, or a name such as "polynomial".
            sets: assignments such as "method.tau=0.5".

        Returns:
            The study.

        Raises:
            StudyError: when there is no such study or file, or as `from_table`.

        Example:
            >>> from pacbayes_fl import Study
            >>> study = Study.from_toml("polynomial", ["method.particles=2", "federation.rounds=10"])
            >>> study.name, study.method.name, study.plan.rounds
            ('polynomial', 'pac-pfl', 10)
        """
        return cls.from_table(*read_table(path), sets)

    def table(self) -> JsonTable:
        """Give the study as a nested table of plain values, nothing implied.

        The epsilon of a simulation, which is nobody's privacy, has a name that says so.
        """
        parts = [one.name for one in fields(self) if one.name not in ("instances", "unsaid")]
        table: JsonTable = {part: settings.plain(getattr(self, part)) for part in parts}
        chosen = {"name": self.method.name, "preset": self.method.preset}
        table["method"] = chosen | settings.as_table(self.method.options)
        if self.privacy.randomness == "simulation":
            part = table["privacy"]
            table["privacy"] = {SIMULATED_EPSILON if key == "epsilon" else key: part[key] for key in part}
        return table

    def to_toml(self) -> str:
        """Write the study as TOML, nothing implied."""
        return settings.to_toml(self.table())

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Differences of the study's values from the preset "paper".

        Returns:
            Dotted key -> (the study's value, the paper preset's value).
        """
        own = self.table()
        method = {"name": self.method.name, "preset": "paper"}
        where = f"preset 'paper' of {self.method.name}"
        paper = Study._resolved({"method": method}, where, (), self.instances).table()
        return {
            f"{part}.{key}": (own[part][key], paper[part][key])
            for part in ("method", "model", "federation")
            for key in paper[part]
            if own[part][key] != paper[part][key] and key not in ("preset", "device", "threads", "checkpoint_every")
        }


def _model_part(recipe: Recipe, given: Any, where: str, instances: Instances) -> GPModel | NetworkModel | InstanceModel:
    """Read [model], which holds little where a program gives the model."""
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if instances.method is not None or instances.model is not None:
        table: InstanceModel = settings.parse(InstanceModel, {"kind": instances.model_kind, **given}, where)
        return table
    if isinstance(kind, str) and kind.startswith(INSTANCE):
        raise study_instances.refused(kind, "[model] kind")
    return models.parse(recipe.model, given, where)


def _check_metrics(names: Sequence[str], where: str, instances: Instances) -> None:
    """Check the names of metrics, before anything is trained."""
    for name in names:
        if name in instances.metrics_by_name:
            continue
        if name.startswith(INSTANCE):
            raise study_instances.refused(name, "[report] metrics")
        if name not in METRICS:
            raise StudyError(f"{where}: unknown metric {shown(name)}", hint=settings.nearest(name, METRICS))
        _ = METRICS[name]


def _name(name: object, where: str) -> str:
    """Take any text for a name that can be written, and that is not blank."""
    if not isinstance(name, str) or not name.strip() or name.encode(errors="ignore").decode() != name:
        raise StudyError(f"{where} name must be text, and not blank, got {shown(name)}")
    return name


def assigned(table: JsonMapping, sets: Sequence[str]) -> tuple[JsonMapping, JsonTable]:
    """Read assignments; where they choose another method or kind of data, the table's part for its own is dropped.

    One table in the place of another, or a source with the same options, keeps [data].

    Args:
        table: of a study.
        sets: assignments such as "method.tau=0.5".

    Returns:
        What of the table still counts, and the nested table of the assignments, to be laid over it.

    Raises:
        StudyError: when an assignment has no "=".

    Warns:
        UserWarning: of keys of [data] that are dropped.
    """
    given: JsonTable = {}
    for assignment in sets:
        settings.override(given, assignment)
    given = with_references(anchored(given, Path.cwd()), Path.cwd())
    for part, key, default in (("method", "name", "pac-pfl"), ("data", "source", DataPart.source)):
        before, after = table.get(part, {}), given.get(part, {})
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            chosen = before.get(key, default)
            if part == "data" and sources.alike(chosen, after.get(key, chosen)):
                continue
            if key in after and after[key] != chosen:  # NaN is not itself
                dropped = (part, "model") if part == "method" and _model(chosen) != _model(after[key]) else (part,)
                table = {name: value for name, value in table.items() if name not in dropped}
                if part == "data":
                    _say_lost(before, after)
                if part == "data" and isinstance(methods := table.get("methods"), Mapping):
                    table = {**table, "methods": {name: _without_data(own) for name, own in methods.items()}}
    return table, given


def _say_lost(before: JsonMapping, after: JsonMapping) -> None:
    """Warn of keys of [data] that were of another kind of source."""
    if lost := [key for key in before if key != "source" and key not in after]:
        what = f"[data] {', '.join(lost)} of the study {'is' if len(lost) == 1 else 'are'} for another kind of source"
        warnings.warn(f"{what} than {shown(after['source'])}, and left out", stacklevel=caller_stacklevel())


def _without_data(own: Any) -> Any:
    return {part: values for part, values in own.items() if part != "data"} if isinstance(own, Mapping) else own


def _budgeted(table: JsonMapping, where: str) -> JsonMapping:
    """Read the epsilon of a simulation, which has a name of its own: giving it asks for a simulation."""
    part = table.get("privacy")
    if not isinstance(part, Mapping) or SIMULATED_EPSILON not in part:
        return table
    if "epsilon" in part or part.get("randomness", "simulation") != "simulation":
        what = f"{where} [privacy] {SIMULATED_EPSILON} is the epsilon of a simulation alone"
        raise PrivacyError(what, hint="give privacy.epsilon instead, or privacy.randomness = 'simulation'")
    rest = {key: value for key, value in part.items() if key != SIMULATED_EPSILON}
    return {**table, "privacy": {"epsilon": part[SIMULATED_EPSILON], "randomness": "simulation"} | rest}


def _check_private(part: object, where: str) -> None:
    """Refuse a [privacy] table that does not say how private: its other keys alone would train in the clear."""
    if isinstance(part, Mapping) and "epsilon" not in part:
        given = ", ".join(map(str, part)) or "nothing"
        what = f"{where} [privacy] gives {given} without epsilon, so that nothing would be private"
        raise PrivacyError(what, hint="set privacy.epsilon to a budget, or to 'none' to train without privacy")


def _model(method: object) -> str | None:
    """Say what the model of a method is; nothing of a name that is not known."""
    return recipe.model if (recipe := METHODS.get(str(method))) is not None else None


def _check_own(method: str, own: Any, where: str) -> None:
    """Check [methods.NAME], also of a method that is not the chosen one: a slip there would show only much later."""
    recipe = METHODS[method]
    kinds = keys.kinds(recipe)
    if not isinstance(own, Mapping):
        raise StudyError(f"{where}] must be a table, got {shown(own)}")
    for part, values in own.items():
        if part == "model":
            models.parse(recipe.model, values, f"{where}.model]")
        elif part in kinds:
            settings.parse(kinds[part], values, f"{where}.{part}]")
            # it says how the method sees the columns, and not which rows there are
            if part == "data" and (others := [key for key in values if key not in parts.SEEN]):
                what = f"{where}.data]: {others[0]} says which rows there are, which all methods of a study share"
                raise StudyError(what, hint=f"give it in [data]; of one method's own: {', '.join(parts.SEEN)}")
        else:
            known = ", ".join(("method", "model", "data", *dict(PARTS)))
            raise StudyError(f"{where}]: unknown part {part!r}", hint=f"valid: {known}")


def read_table(path: Path | str) -> tuple[JsonTable, str]:
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
        hint = f"`init --data {file.name}` writes the study of a table" if file.suffix.lower() in TABLES else ""
        raise StudyError(f"{file.name} is not TOML: {error}", hint=hint) from error
    return {"name": file.stem} | with_references(anchored(table, file.parent), file.parent), file.name
