"""Recipes: what studies, tables and the documentation know of a method beside the options of its dataclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.options import Paper, built, flat_options, table_of, with_word
from pacbayes_fl.options import Option, check, option
from pacbayes_fl.results.metrics import Task

AnyMethod = Method[Any, Any, Any, Any]
Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]
Defaults = Mapping[str, Mapping[str, object]]
_INHERITED: Final = "what dataclasses.replace makes of another recipe keeps all that is not replaced"
HELD_OUT: Final = "held-out"
"""Value of an option that a study leaves open: validation rows, or held-out training rows, choose it."""


class LogUniform(NamedTuple):
    """A positive number between two bounds, uniform in its logarithm."""

    low: float
    high: float


class OneOf(NamedTuple):
    """One of some values, with equal probability."""

    values: tuple[object, ...]


Search = Mapping[str, LogUniform | OneOf]


Margin = Literal["mean", "most", "clearly"]
"""By which one candidate has to be better than another: in the mean, for most clients, or by two standard errors."""


class HeldOutChoice(NamedTuple):
    """An option that a study may leave open by the value "held-out".

    The study chooses among the candidates by the log likelihood of validation rows, or of training rows that a
    federation was not given: one of `trial_rounds` rounds for each candidate or, for an option that only
    `Method.personalise` reads, a single one of all rounds. An option outside of [method] has the word in the type of
    its own field.

    Args:
        option: its name.
        values: the candidates in the order of preference among equals, or what gives them from the study's options.
        after: whether no round depends on it.
        by_default: whether it is open where a study does not set it, of [method]. From Python its default is then the
            first value.
        table: of the study that has the option; of [data] only the scale of columns and the inputs that are clients'
            summaries can be left open.
        clients: whether some clients are held out as well as rows, so that new clients count.
        rounds: of a trial, where it need not have the study's `trial_rounds`.
        better: what another candidate than the first has to be, of options that clients choose: better in the "mean",
            for "most" clients as well, or "clearly", by two standard errors over clients.
        whole: whether candidates are judged at their best numbers of rounds along the whole path, where that number is
            open, and not along the rounds of a trial: of options that say how much is learned late.
        early: whether another candidate than the first is ahead early or never, and so left where it falls behind the
            first by two standard errors, as one is that has to be better "clearly".
    """

    option: str
    values: tuple[Any, ...] | Callable[[Any], tuple[Any, ...]]
    after: bool = False
    by_default: bool = True
    table: Literal["method", "model", "data", "federation"] = "method"
    clients: bool = False
    rounds: int | None = None
    better: Margin = "mean"
    whole: bool = False
    early: bool = False

    @property
    def key(self) -> str:
        """Its name in notes and labels, with the table where that is not [method]."""
        return self.option if self.table == "method" else f"{self.table}.{self.option}"

    def candidates(self, options: Any) -> tuple[Any, ...]:
        """Values to choose among.

        Args:
            options: of the study's method.

        Returns:
            The candidates, the preferred first.
        """
        return self.values if isinstance(self.values, tuple) else self.values(options)


@dataclass(frozen=True)
class Trials:
    """How a study chooses an option that it leaves open.

    Args:
        trial_rounds: rounds of the federation that is trained for every candidate, at most those of the run.
    """

    trial_rounds: int = option(20, low=1)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


class MethodSummary(NamedTuple):
    """The components of a method, for the table of methods.

    Args:
        model: the model that clients learn.
        client: the client's half of a round.
        server: the server's half.
        uploads: content of an update.
        keeps: state of a client between rounds.
    """

    model: str
    client: str
    server: str
    uploads: str
    keeps: str


@dataclass(frozen=True)
class Recipe:
    """Record of a method; options, ranges and meanings are those of its dataclass.

    Args:
        title: one line.
        method: its class, a frozen dataclass of options.
        summary: its components.
        rounds: False where there is nothing to repeat, and one round says all.
        model: what the table [model] describes: a prior over "functions" (Gaussian processes), or a network with
            "weights".
        tasks: "regression" on numbers, "classification" on labels; those that such models are for when None.
        presets: values by preset and part ("method", "model", "federation"), where they differ from the defaults.
            "recommended" holds the defaults; to "paper" is added what options say of the paper.
        search: what `tune` varies, by dotted key.
        held_out: what a study may leave open; `trials` says how long it tries.
        trials: options of the study's choice.
        own_rows: values by part of a study that names a file of one's own, where they differ from the preset
            "recommended": nobody has tuned anything for it. All are of the kind that clients' rows decide, and count
            where these may. All networks have two more: rounds, and the noise of numbers, are chosen by held-out rows.
        own_labels: those beside them where targets are labels; rounds that are chosen for labels are not for numbers.
        variant: values by field of the class in which this method differs from the class with its defaults.
        fixed: names of options that this method does not have.
        paper: what the paper says of options where it differs from what their fields say.
        instance: a method that a program has made: its values are no options of a study, and no other is built.
    """

    title: str
    method: type[AnyMethod]
    summary: MethodSummary
    rounds: bool = True
    model: Literal["functions", "weights"] = "functions"
    tasks: tuple[Task, ...] | None = None
    presets: Presets = field(default_factory=dict)
    search: Search = field(default_factory=dict)
    held_out: tuple[HeldOutChoice, ...] = ()
    trials: Trials | None = None
    own_rows: Defaults = field(default_factory=dict)
    own_labels: Defaults = field(default_factory=dict)
    variant: Mapping[str, object] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    paper: Mapping[str, Paper] = field(default_factory=dict)
    instance: AnyMethod | None = None

    def __post_init__(self) -> None:
        """Complete the presets and make all tables read-only.

        Raises:
            StudyError: when a choice is of an option that the method does not have, or of no value, or its trials are
                not said.
        """
        self._check_choices()
        papers = {one.name: one.paper for one in self.placed.values() if isinstance(one.paper, Paper)}
        stated = {name: paper.value for name, paper in papers.items() if paper.value is not ...}
        given = {preset: {**self.presets.get(preset, {})} for preset in ("recommended", "paper", *self.presets)}
        if stated:
            given["paper"]["method"] = {**stated, **given["paper"].get("method", {})}
        frozen = {
            preset: MappingProxyType({name: MappingProxyType({**values}) for name, values in table.items()})
            for preset, table in given.items()
        }
        tables = {"presets": frozen, "search": self.search, "variant": self.variant}
        for name in ("own_rows", "own_labels"):
            tables[name] = {part: MappingProxyType({**values}) for part, values in getattr(self, name).items()}
        for name, table in tables.items():
            object.__setattr__(self, name, MappingProxyType({**table}))

    def _check_choices(self) -> None:
        where = f"held_out of the recipe of {self.method.__name__}"
        names = {one.name for one in flat_options(self.method, self.variant).values()}.difference(self.fixed)
        for asks in self.held_out:
            if asks.table == "method" and asks.option not in names:
                what = f"{where} names {asks.option!r}, which is none of its options"
                raise StudyError(what, hint=f"one of {', '.join(sorted(names)) or 'none'}; {_INHERITED}")
            if not (callable(asks.values) or (isinstance(asks.values, tuple) and asks.values)):
                what = f"{where}: values of {asks.option!r} must be a tuple of candidates or a function that gives one"
                raise StudyError(f"{what}, got {shown(asks.values)}")
            if self.trials is None and not (asks.after or (asks.clients and asks.rounds)):
                what = f"{where} leaves {asks.option!r} to trials, and the recipe does not say how long they are"
                raise StudyError(
                    what, hint="trials=Trials(trial_rounds=20), or after=True where no round depends on it"
                )

    @property
    def learns(self) -> tuple[Task, ...]:
        """Tasks that the method is for."""
        usual: tuple[Task, ...] = ("regression", "classification") if self.model == "weights" else ("regression",)
        return usual if self.tasks is None else self.tasks

    @property
    def federated(self) -> bool:
        """False where rows leave the clients."""
        return self.method.federated

    @property
    def _open(self) -> tuple[HeldOutChoice, ...]:
        """Choices of the table [method]."""
        return tuple(one for one in self.held_out if one.table == "method")

    @cached_property
    def placed(self) -> dict[str, Option]:
        """Options of the method by the fields that hold them, with a study's defaults."""
        if self.instance is not None:
            return {}
        left_open = {asks.option: asks for asks in self._open}
        result = {}
        for path, one in flat_options(self.method, self.variant).items():
            if one.name in self.fixed:
                continue
            one = one._replace(paper=self.paper.get(one.name, one.paper))
            if (asks := left_open.get(one.name)) is not None:
                default = HELD_OUT if asks.by_default else one.default
                one = one._replace(kind=with_word(one.kind, HELD_OUT), default=default)
            result[path] = one
        return result

    @cached_property
    def options(self) -> type[object]:
        """Dataclass of a study's table [method]; `pacbayes_fl.options.options_of` says what is known of its fields."""
        trials = {} if self.trials is None else flat_options(type(self.trials), asdict(self.trials))
        return table_of(f"{self.method.__name__}Options", {**self.placed, **trials}, f"Options of {self.title}")

    def build(self, options: object, model: object, features: Sequence[str] = ()) -> AnyMethod:
        """Make the method from a study's options.

        Args:
            options: a value of `options`.
            model: prior or network.
            features: names of the features.

        Returns:
            The method.

        Raises:
            StudyError: when an option is still open, or the options do not go together.
        """
        if self.instance is not None:
            return self.instance
        values = {one.name: getattr(options, one.name) for one in self.placed.values()}
        for asks in self._open:
            if values[asks.option] == HELD_OUT:
                raise StudyError(f"{asks.option} is still 'held-out'", hint="a run of a study chooses it")
        needed = {"model": model, "features": tuple(features)}
        return built(self.method, values, self.variant, needed)

    def make(self, model: object, features: Sequence[str] = (), **options: object) -> AnyMethod:
        """Build the method in a program; an option left open takes its first candidate.

        Args:
            model: prior or network.
            features: names of the features, for a method that looks for one.
            **options: values by name, where they differ from the defaults.

        Returns:
            The method.

        Raises:
            StudyError: when a value is out of its range, or options do not go together.
            TypeError: when an option is not one of the method's.
        """
        usual = self.options(**options)
        first = {one.option: one.candidates(usual)[0] for one in self._open if getattr(usual, one.option) == HELD_OUT}
        return self.build(self.options(**{**options, **first}), model, features)


ROUNDS: Mapping[str, object] = MappingProxyType({"rounds": 160})
"""Rounds of the methods on networks, which differ little after them."""

OWN_LAYER_ROUNDS: Mapping[str, object] = MappingProxyType({"rounds": 40})
"""Rounds where the last layer is a client's own, fitted to its rows alone: many more overfit them."""

PAPER_ROUNDS: Mapping[str, object] = MappingProxyType({"rounds": 800})
"""Rounds of the papers on networks (pFedBayes, BPFed and FedSI, "800 communication rounds")."""

SEARCH_NETWORK: Search = MappingProxyType(
    {"method.rate": LogUniform(3e-4, 3e-3), "federation.rounds": OneOf((40, 80, 160))}
)
"""What a search varies of every method on networks that trains in rounds."""
