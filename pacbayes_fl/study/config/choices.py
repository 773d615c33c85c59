"""Options that a study may leave open to be chosen by held-out rows, whatever table they stand in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, Final, Protocol, TypeVar, cast

from pacbayes_fl import settings
from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods import HeldOutChoice, Recipe
from pacbayes_fl.methods.recipe import HELD_OUT
from pacbayes_fl.plugins.references import INSTANCE
from pacbayes_fl.study.config import models, sources
from pacbayes_fl.study.config.parts import FederationPart, MethodPart


class Tables(Protocol):
    """What is asked here of a study."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of its method."""

    @property
    def method(self) -> MethodPart:
        """Its table [method]."""

    @property
    def federation(self) -> FederationPart:
        """Its table [federation]."""


Whole = TypeVar("Whole", bound=Tables)

TEMPERATURE: Final = HeldOutChoice("temperature", (), after=True, table="model")
"""A number: of classifiers, the temperature of their predictions."""

ROUNDS: Final = HeldOutChoice("rounds", (10, 14, 20, 28, 40, 56, 80, 112, 160, 200), table="federation", clients=True)
"""The number of rounds: one federation visits all candidates, the fewest first, in steps of some sqrt 2. Before the
tenth, particles that move by Adam are still where they were drawn, and too few rows would favour too few rounds."""

NOISE: Final = HeldOutChoice(
    "noise_std",
    (0.4, 0.1, 0.12, 0.14, 0.17, 0.2, 0.24, 0.28, 0.34, 0.48, 0.57, 0.67, 0.8, 0.95, 1.13, 1.35, 1.6, 1.9, 2.3),
    table="model",
    clients=True,
)
"""Of networks whose targets are numbers, in steps of a quarter of an octave: at most .01 nats from the best.

Federations train with the first, and all are compared along their path."""

_SHARED: Final = (ROUNDS, TEMPERATURE)

FEW: Final = 100
"""Training rows of a client up to which the values that were looked at with 250 are not taken."""


def every(recipe: Recipe) -> tuple[HeldOutChoice, ...]:
    """List what studies of a method may leave open.

    Args:
        recipe: of the method.

    Returns:
        Its own choices, and those that all methods, or all methods on networks, share.
    """
    return (*recipe.held_out, *([NOISE] if recipe.model == "weights" else []), *_SHARED)


def still_open(study: Tables) -> tuple[HeldOutChoice, ...]:
    """List the choices that are still to be made by held-out rows.

    Args:
        study: any.

    Returns:
        Those of the method first; no number of rounds where there is nothing to repeat.
    """
    asked = [one for one in every(study.recipe) if _value(study, one) == HELD_OUT]
    return tuple(one for one in asked if one is not ROUNDS or study.recipe.rounds)


def candidates(study: Tables, asked: HeldOutChoice) -> tuple[Any, ...]:
    """List the values among which an option is chosen.

    Args:
        study: which leaves it open.
        asked: the option.

    Returns:
        The preferred first; of a temperature, for which there is no list, that of no tempering.
    """
    return (1.0,) if asked is TEMPERATURE else asked.candidates(study.method.options)


def with_value(study: Whole, asked: HeldOutChoice, value: object) -> Whole:
    """Give an option that was left open a value.

    Args:
        study: any.
        asked: the option.
        value: one of its candidates, or "held-out" to leave it open again.

    Returns:
        The study with it.
    """
    given, whole = {asked.option: value}, cast(Any, study)
    if asked.table == "method":
        result = replace(whole, method=replace(study.method, options=replace(study.method.options, **given)))
    else:
        result = replace(whole, **{asked.table: replace(getattr(whole, asked.table), **given)})
    return cast(Whole, result)


def kind_of(study: Tables, asked: HeldOutChoice) -> type:
    """The dataclass that has an option, by which a value of it is read.

    Args:
        study: any.
        asked: the option.

    Returns:
        That of the study's table.
    """
    return type(_part(study, asked))


def rounds_of(study: Tables) -> dict[str, int]:
    """Say how many rounds a plan has, where its table does not.

    Args:
        study: any.

    Returns:
        One where there is nothing to repeat, the most where their number is still to be chosen; otherwise nothing.
    """
    if not study.recipe.rounds:
        return {"rounds": 1}
    return {"rounds": max(candidates(study, ROUNDS))} if study.federation.rounds == HELD_OUT else {}


def refuse_open(study: Tables) -> None:
    """Refuse to train before everything is chosen that a table of the data or the model leaves open.

    Args:
        study: what is to be trained.

    Raises:
        StudyError: naming the option, or the method for which it is not chosen.
    """
    known = [one.key for one in every(study.recipe)]
    for table in ("data", "model"):
        part: Any = getattr(study, table)
        for name in part.__dataclass_fields__:
            key = f"{table}.{name}"
            if getattr(part, name) != HELD_OUT or key in (TEMPERATURE.key, NOISE.key):  # which have a usual value
                continue
            if key not in known:
                what = f"{key} = 'held-out' is not for {study.method.name}, for which nothing is tried"
                raise StudyError(what, hint=f"set {key} to a value")
            raise StudyError(f"{key} is still 'held-out'", hint="a run of a study chooses it")


def own_defaults(recipe: Recipe, table: JsonMapping) -> JsonTable:
    """Give the defaults of a study on rows for which nobody has tuned anything.

    These are rows of a file of one's own, and published images where clients have no more than 100 training rows: what
    bundled studies have was looked at with 250. Of the latter the options of the method and the temperature alone are
    left open.

    Args:
        recipe: of its method.
        table: of the study, with everything that was given.

    Returns:
        Values by part; nothing of a source that is built in, and nothing that takes what other clients' rows say where
        they may say nothing: in a private run, or where certificates by folds stand on all rows.
    """
    data = _table(table, "data")
    source, rows = data.get("source"), None
    if not isinstance(source, str) or source.startswith(INSTANCE):
        return {}
    if source in sources.every():
        rows = sources.rows_of(source, _table(data, "options"))
        if rows is None or rows > FEW:
            return {}
    certify = _table(_table(table, "report"), "certify")
    private = _table(table, "privacy").get("epsilon") not in (None, settings.NONE)
    if private or certify.get("scheme") == "folds":
        return {}
    if rows is None:
        model = _table(table, "model")
        return {**_own_rows(recipe, data.get("task"), model, models.table_of(recipe.model, model).network_options)}
    own = _own_rows(recipe, "classification", {}, ())
    return {
        part: {n: v for n, v in values.items() if part == "method" or f"{part}.{n}" == TEMPERATURE.key}
        for part, values in own.items()
    }


def unsaid(recipe: Recipe, stated: JsonMapping, parts: Mapping[str, object]) -> JsonTable:
    """Remember what a study has by default and would not have on rows of one's own.

    Args:
        recipe: of its method.
        stated: everything that was given.
        parts: of the study, by name.

    Returns:
        Values by part, of the options that `own_rows` or `own_labels` of the recipe names and nobody has given.
    """
    result: JsonTable = {}
    for part, values in _own(recipe, "classification").items():
        holder = getattr(parts[part], "options", None) if part == "method" else parts[part]
        result[part] = {name: getattr(holder, name) for name in values if name not in _table(stated, part)}
    return result


def with_own_defaults(study: Whole) -> Whole:
    """Give a study whose rows a program has the defaults of a file of these rows.

    Args:
        study: as its table was resolved, for another source.

    Returns:
        The study, in which options that were neither given nor changed since have those defaults; itself where it is
        private, or certificates by folds stand on all rows.
    """
    whole = cast(Any, study)
    if whole.privacy.epsilon is not None or whole.report.certify.scheme == "folds":
        return study
    usual = type(whole.model)()
    stated = {name: value for name, value in vars(whole.model).items() if value != getattr(usual, name)}
    own = _own_rows(study.recipe, whole.data.task, stated, usual.network_options)
    for part, values in own.items():
        options = part == "method"
        holder = whole.method.options if options else getattr(whole, part)
        known = _table(whole.unsaid, part)
        changed = {n: value for n, value in values.items() if n in known and getattr(holder, n, None) == known[n]}
        holder = replace(holder, **changed)
        whole = replace(whole, **{part: replace(whole.method, options=holder) if options else holder})
    return cast(Whole, whole)


def without_own_defaults(study: Whole) -> Whole:
    """Give a study whose method a program brings what its tables say, without the defaults of the method it named.

    Args:
        study: of a file of one's own.

    Returns:
        The study, in which options that nobody has given and that its own method would have chosen by rows have the
        defaults of their tables; itself where the source is built in.
    """
    whole = cast(Any, study)
    if whole.data.source in sources.every():
        return study
    own = _own(study.recipe, whole.data.task)
    for part in ("data", "federation", "model"):
        holder, known = getattr(whole, part), _table(whole.unsaid, part)
        usual = {f.name: f.default for f in fields(holder)}
        named = {n for n in known if n in usual and getattr(holder, n) == known[n] == own.get(part, {}).get(n)}
        whole = replace(whole, **{part: replace(holder, **{name: usual[name] for name in named})})
    return cast(Whole, whole)


def _own_rows(
    recipe: Recipe, task: object, model: JsonMapping, of_networks: Collection[str]
) -> dict[str, dict[str, object]]:
    """Defaults on rows of one's own by part, without those of [model] that are not for a study with such a table."""
    idle, given = set(), settings.merge({**recipe.presets["recommended"].get("model", {})}, model)
    if given.get("likelihood") == "student-t":  # which says itself what shape errors have
        idle.add("residuals")
    if task == "classification" or given.get("likelihood") == "heteroscedastic":  # without a noise, or with its network
        idle.add(NOISE.option)
    if model.get("linear") == "none" or not model.keys().isdisjoint(of_networks):  # nothing beside them, or asked for
        idle.add("networks")
    own = _own(recipe, task).items()
    return {part: {n: v for n, v in values.items() if part != "model" or n not in idle} for part, values in own}


def _own(recipe: Recipe, task: object) -> dict[str, dict[str, object]]:
    """What a recipe has for rows of one's own, by part: for all, and for labels."""
    result: dict[str, dict[str, object]] = {part: {**values} for part, values in recipe.own_rows.items()}
    if recipe.model == "weights":
        result.setdefault("model", {}).setdefault(NOISE.option, HELD_OUT)
        of_labels = ROUNDS.option in recipe.own_labels.get("federation", {})  # alone
        if recipe.federated and recipe.rounds and not of_labels:  # of rows in one place a round says nothing
            result.setdefault("federation", {}).setdefault(ROUNDS.option, HELD_OUT)
    for part, values in recipe.own_labels.items() if task == "classification" else ():
        result.setdefault(part, {}).update(values)
    return result


def _table(table: JsonMapping, name: str) -> Mapping[str, Any]:
    part = table.get(name)
    return part if isinstance(part, Mapping) else {}


def _value(study: Tables, asked: HeldOutChoice) -> object:
    return getattr(_part(study, asked), asked.option, None)


def _part(study: Tables, asked: HeldOutChoice) -> object:
    """The options among which an open one stands."""
    return study.method.options if asked.table == "method" else getattr(study, asked.table)
