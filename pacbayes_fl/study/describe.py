"""Descriptions of everything that a study, a certificate or a table of results can name, read from its record."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pacbayes_fl import settings
from pacbayes_fl.bounds import BOUNDS, LOSSES, OWN_BOUNDS, OWN_LOSSES, bound_named
from pacbayes_fl.bounds.loss_table import settings_of, title_of
from pacbayes_fl.bounds.normal_nll import UNBOUNDED
from pacbayes_fl.data.partitions import PARTITIONS
from pacbayes_fl.errors import StudyError, shown
from pacbayes_fl.methods import METHODS, Recipe
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.options import Option, options_of
from pacbayes_fl.plugins.references import reference
from pacbayes_fl.plugins.table import OpenTable
from pacbayes_fl.posteriors.hyper_posterior import HYPER_PRIORS, is_hyper_prior
from pacbayes_fl.posteriors.weights.families import FAMILIES
from pacbayes_fl.privacy.kinds import MECHANISMS
from pacbayes_fl.results.metrics import METRICS
from pacbayes_fl.server.aggregations import AGGREGATIONS
from pacbayes_fl.study.config import plugins, sources
from pacbayes_fl.study.config.keys import PARTS
from pacbayes_fl.study.config.listing import BUNDLED, listing
from pacbayes_fl.study.config.models import KINDS, MODEL_KINDS, kinds_over
from pacbayes_fl.study.config.parts import CertifyPart, DataPart

_STATED: Final = " --variance-factor 9e3 --scale 0"

_NUMBERS: Final = MappingProxyType(  # of examples
    {
        "risk": "0.03",
        "kl": "500",
        "n": "30000",
        "beta": "3000",
        "log_z": "-300",
        "log_ratio": "500",
        "tandem_risk": "0.02",
        "variance": "0.01",
        "variance_factor": "0.25",
        "scale": "0",
    }
)


class Row(NamedTuple):
    """An option in a table of options.

    Args:
        cells: its name and values, one for each column.
        text: what it may be, and what it means.
    """

    cells: tuple[str, ...]
    text: str


class Options(NamedTuple):
    """A table of options.

    Args:
        title: whose options they are.
        head: names of the columns.
        rows: an option each.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]


class Description(NamedTuple):
    """The description of a name.

    Args:
        family: what it is the name of.
        name: the name.
        title: one line.
        facts: labels and what they say.
        options: tables of its options.
        examples: commands.
    """

    family: str
    name: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    options: tuple[Options, ...] = ()
    examples: tuple[str, ...] = ()


def describe(name: str) -> tuple[Description, ...]:
    """Describe a name.

    Args:
        name: of a method, bound, loss, metric, source of data, kind of model, variational family, partition, mechanism,
            rule of aggregation, bundled study or table of a study; of an entry point of an installed package; or a
            reference such as "mine.py:MyMethod".

    Returns:
        What is known of it, once for each family that has the name.

    Raises:
        StudyError: when nothing has it, with the nearest name that something has.

    Example:
        >>> from pacbayes_fl.study.describe import describe
        >>> (bound,) = describe("seeger")
        >>> bound.family, bound.title
        ('bound', 'Bound the risk by the inverse of the binary KL divergence: the default (Seeger 2002, Maurer 2004).')
    """
    name = sources.FOLDER if name.endswith("/") else name  # whichever folder of images
    result = [one(name) for names, one in _families() if name in names]
    found = [one for table, one in _open() if table.leads_here(name)]
    if len(found) > 1:  # whatever can be called with a model may make a hyper-prior: a method's class is not meant so
        found = [one for one in found if one is not _hyper_prior]
    result += [one(name) for one in found]
    if not result and reference(name) is not None:
        expected = "; ".join(table.expected for table, _ in _open())
        raise StudyError(f"{name} is nothing that a study or a command can name", hint=f"it must be one of: {expected}")
    if not result:
        every = dict.fromkeys(each for names, _ in _families() for each in names)
        raise StudyError(f"nothing is called {shown(name)}", hint=settings.nearest(name, every))
    return tuple(result)


def every_name() -> dict[str, tuple[str, ...]]:
    """Name all that can be described, by family."""
    return {one(names[0]).family: names for names, one in _families()}


def _families() -> tuple[tuple[tuple[str, ...], Callable[[str], Description]], ...]:
    return (
        (tuple(METHODS), _method),
        (tuple(BOUNDS), _bound),
        ((*LOSSES, *UNBOUNDED), _loss),
        (tuple(METRICS), _metric),
        ((*sources.every(), sources.FOLDER), _source),
        (tuple(KINDS), _model),
        (tuple(PARTITIONS), _partition),
        (tuple(FAMILIES), _weight_family),
        (tuple(MECHANISMS), _mechanism),
        (tuple(AGGREGATIONS), _aggregation),
        (tuple(_tables()), _table),
        (tuple(dict(listing("studies"))), _study),
    )


def _open() -> tuple[tuple[OpenTable[Any], Callable[[str], Description]], ...]:
    return (
        (plugins.METHODS, _method),
        (OWN_BOUNDS, _bound),
        (OWN_LOSSES, _loss),
        (plugins.METRICS, _metric),
        (sources.SOURCES, _source),
        (MODEL_KINDS, _model),
        (sources.OPEN_PARTITIONS, _partition),
        (FAMILIES, _weight_family),
        (HYPER_PRIORS, _hyper_prior),
        (MECHANISMS, _mechanism),
        (AGGREGATIONS, _aggregation),
    )


def _tables() -> Mapping[str, type]:
    return {"data": DataPart, **dict(PARTS), "report.certify": CertifyPart}


def _study(name: str) -> Description:
    study = tomllib.loads((BUNDLED / f"{name}.toml").read_text("utf-8"))
    source, options = study["data"]["source"], study["data"].get("options", {})
    facts = [
        ("data", ", ".join([source, *(f"{key} = {_value(one)}" for key, one in options.items())])),
        ("files", _files(source, options)),
        ("method", f"{study['method']['name']}, where method.name or --methods names no other"),
    ]
    if own := study.get("methods", {}):
        facts.append(("values of single methods", ", ".join(own)))
    pair = "pfedbayes,fedavg-ft" if "root" in sources.options_of(source) else "pac-pfl,pooled-ridge"
    examples = (f"pacbayes-fl run {name}", f"pacbayes-fl compare {name} --methods {pair} --seeds 3")
    return Description("bundled study", name, dict(listing("studies"))[name], tuple(facts), (), examples)


def _files(source: str, options: Mapping[str, object]) -> str:
    """Say which files a bundled study reads."""
    read = [value for value in options.values() if isinstance(value, str) and "$" in value]
    if "root" in sources.options_of(source):
        read.append("the images, in $PACBAYES_FL_DATA or in the folder that data.options.root names")
    return "; ".join(read) or "none: the rows are drawn, or ship with a package"


def _value(value: object) -> str:
    """Write a value as a study has it, or "-" where there is none."""
    return "-" if value is dataclasses.MISSING else settings.to_value(settings.plain(value))


def _row(option: Option, values: Iterable[str]) -> Row:
    meaning = option.meaning[:1].upper() + option.meaning[1:]
    allowed = option.allowed[:1].upper() + option.allowed[1:]
    return Row((option.name, *values, option.symbol), f"{allowed}. {meaning}".strip() + _stated(option))


def _stated(option: Option) -> str:
    """Say what the paper says of an option, and where."""
    if not isinstance(option.paper, Paper):
        return ""
    value = "" if option.paper.value is ... else f"{_value(option.paper.value)}, "
    return f" Paper: {value}{option.paper.where}."


def _options(title: str, options: Mapping[str, Option]) -> tuple[Options, ...]:
    """List options with their defaults; nothing where there are none."""
    rows = tuple(_row(option, [_value(option.default)]) for option in options.values())
    return (Options(title, ("option", "default", "symbol"), rows),) if rows else ()


def _method(name: str) -> Description:
    recipe = plugins.METHODS[name]
    facts = [(label, text) for label, text in recipe.summary._asdict().items()]
    facts += [("federated", "rows stay with the clients" if recipe.federated else "no: rows leave the clients")]
    facts += [("rounds", "many" if recipe.rounds else "one: there is nothing to repeat")]
    facts += [("model kinds", ", ".join(kinds_over(recipe.model)))]
    facts += [("tuned", ", ".join(recipe.search) or "what a study leaves open, and nothing of its own")]
    if recipe.held_out:
        text = 'may be left open as "held-out": rows that a federation was not given choose it'
        facts += [(one.key, text) for one in recipe.held_out]
    own = [
        f"{part}.{name} = {_value(value)}" for part, table in recipe.own_rows.items() for name, value in table.items()
    ]
    facts += [("on a file of one's own", ", ".join(own))] if own else []
    first = next(iter(options_of(recipe.options).values()), None)
    example = f"pacbayes-fl run polynomial --set method.name={name}"
    more = [f"{example} --set method.{first.name}={_value(first.default)}"] if first else []
    return Description("method", name, recipe.title, tuple(facts), _presets(recipe), (example, *more))


def _presets(recipe: Recipe) -> tuple[Options, ...]:
    """List a method's options with the values of its presets side by side, and what else these set."""
    usual = options_of(recipe.options)
    rows = []
    for option in usual.values():
        given = [table.get("method", {}).get(option.name, option.default) for table in recipe.presets.values()]
        rows.append(_row(option, map(_value, given)))
    tables = {"model": KINDS[kinds_over(recipe.model)[0]].table, **dict(PARTS)}
    for part, kind in tables.items():
        for option in options_of(kind).values():
            values = [table.get(part, {}).get(option.name, option.default) for table in recipe.presets.values()]
            if any(option.name in table.get(part, {}) for table in recipe.presets.values()):
                rows.append(_row(option._replace(name=f"{part}.{option.name}"), map(_value, values)))
    head = ("option", *recipe.presets, "symbol")
    return (Options("options of [method], by preset", head, tuple(rows)),) if rows else ()


def _bound(name: str) -> Description:
    bound = bound_named(name)
    facts = tuple((label, text) for label, text in bound.described() if label != "bound")
    numbers = " ".join(f"--{key.replace('_', '-')} {_NUMBERS[key]}" for key in bound.needs if key in _NUMBERS)
    if bound.group is None and _NUMBERS.keys() >= {*bound.needs}:  # else it needs what no command line takes
        prior = "'row-level DP' --epsilon 0.001" if bound.private else "split"
        examples = [f"pacbayes-fl bound {name} {numbers} --delta 0.025 --prior {prior} --independent"]
    else:
        examples = [f"python -c \"from pacbayes_fl import bounds; help(bounds.BOUNDS['{name}'].function)\""]
    if bound.certifiable:
        beta = " --beta rows" if "beta" in bound.needs else ""
        beta += f" --loss normal-nll=0.5{_STATED}" if "variance_factor" in bound.needs else ""
        examples += [f"pacbayes-fl certify runs/split --bound {name}{beta}"]
    return Description("bound", name, bound.summary, facts, (), tuple(examples))


def _loss(name: str) -> Description:
    known = {**LOSSES, **UNBOUNDED}
    loss: Any = known[name] if name in known else OWN_LOSSES[name]
    settings = settings_of(name)
    numbers = hasattr(loss, "expected")
    needed = [key for key, default in settings.items() if default is inspect.Parameter.empty]
    facts = [
        ("predictions", "numbers, or a Gaussian of them" if numbers else "log probabilities of labels"),
        ("setting", "; ".join(_setting(*one) for one in settings.items()) or "none"),
    ]
    if isinstance(loss.convex, bool):  # of a class it may wait for the object
        facts.append(("convex", "in the prediction" if loss.convex else "not known to be"))
    example = f"pacbayes-fl certify runs/split --loss {name}{'=4' if needed else ''}"
    if name in UNBOUNDED:
        example = f"pacbayes-fl certify runs/split --bound sub-gamma --loss {name}=0.5 --beta root{_STATED}"
    return Description("loss", name, title_of(loss), tuple(facts), (), (example,))


def _setting(name: str, default: object) -> str:
    return name if default is inspect.Parameter.empty else f"{name} = {_value(default)}"


def _metric(name: str) -> Description:
    metric = plugins.METRICS[name]
    facts = [
        ("label", metric.label),
        ("unit", metric.unit or "none"),
        ("better", metric.better or "neither end"),
        ("task", ", ".join(metric.tasks)),
        *(("option", f"report.{one.setting} = {_value(one.default)}") for one in metric.options),
        *([("search", f"`tune --score {metric.search}` makes it small")] if metric.search else []),
    ]
    examples = ("pacbayes-fl show runs/first", "pacbayes-fl show runs/first --json")
    return Description("metric", name, metric.meaning, tuple(facts), (), examples)


def _source(name: str) -> Description:
    source = sources.find(name)
    if source is None:
        raise StudyError(f"there is no source {name!r}")
    independent = "count as independent draws, as bounds need them" if source.rows_independent else "are no such draws"
    facts = (
        ("targets", "labels of classes" if source.classes else "numbers"),
        ("rows", f"the rows of a client {independent}"),
    )
    method = " --set method.name=pfedbayes" if source.classes else ""
    options = _options("options of [data.options]", sources.options_of(name))
    return Description(
        "source of data",
        name,
        source.title,
        facts,
        options,
        (f"pacbayes-fl run polynomial --set data.source={name}{method}",),
    )


def _model(name: str) -> Description:
    kind = MODEL_KINDS[name]
    able = [method for method, recipe in METHODS.items() if recipe.model == kind.over]
    facts = (
        ("over", f"a prior over {kind.over}"),
        ("inputs", "images" if kind.images else "flat rows and images" if kind.over == "weights" else "flat rows"),
        ("methods", ", ".join(able)),
    )
    data = " --set data.source=mnist" if kind.images else ""
    example = f"pacbayes-fl run polynomial{data} --set method.name={able[0]} --set model.kind={name}"
    return Description(
        "kind of model", name, kind.title, facts, _options("options of [model]", options_of(kind.table)), (example,)
    )


def _partition(name: str) -> Description:
    one = PARTITIONS[name] if name in PARTITIONS else sources.OPEN_PARTITIONS[name]
    source = "femnist" if one.needs_owners else "mnist"
    facts = (
        ("data", "sets whose rows have owners" if one.needs_owners else "every set of images"),
        ("test rows", f"of the {one.pool} pool where data.options.pool does not say it"),
    )
    example = f"--set method.name=pfedbayes --set data.source={source} --set data.options.partition={name}"
    options = _options("options of [data.options], beside those of every partition", options_of(one.options))
    return Description("partition", name, one.title, facts, options, (f"pacbayes-fl run polynomial {example}",))


def _weight_family(name: str) -> Description:
    kind = FAMILIES[name]
    able = [method for method, recipe in METHODS.items() if "family" in options_of(recipe.options)]
    facts = (("parameters", f"{kind.parameters}, of D weights"), ("methods", ", ".join(able)))
    example = f"pacbayes-fl run polynomial --set method.name={able[0]} --set method.family={name}"
    return Description("variational family", name, kind.title, facts, (), (example,))


def _hyper_prior(name: str) -> Description:
    made = HYPER_PRIORS[name]
    title = (made.__doc__ or type(made).__name__).strip().partition("\n")[0]
    how = "itself a hyper-prior" if is_hyper_prior(made) else "a function of the model that gives a hyper-prior"
    able = [method for method, recipe in METHODS.items() if "own_hyper_prior" in options_of(recipe.options)]
    example = f"pacbayes-fl run polynomial --set method.name={able[0]} --set method.own_hyper_prior={name}"
    return Description("hyper-prior", name, title, (("object", how), ("methods", ", ".join(able))), (), (example,))


def _mechanism(name: str) -> Description:
    kind = MECHANISMS[name]
    account = "no distribution of losses: zCDP and the pure epsilon" if kind.account == "zcdp" else kind.account
    facts = (
        ("clip", "most nats of regret" if kind.chooses else f"L{kind.norm} norm of what a client sends in a round"),
        ("account", account),
        (
            "epsilon",
            "of all releases together" if kind.claim is None else f"what {kind.claim.who} claims, which does not hold",
        ),
        ("delta", "0.1 / N where a study names none" if kind.delta else "0 where a study names none"),
    )
    few = "--set method.particles=1 --set federation.rounds=2 --set privacy.clip=5 " * kind.chooses
    example = f"--set privacy.epsilon=5 --set privacy.mechanism={name} {few}--out runs/private"
    return Description("noise mechanism", name, kind.title, facts, (), (f"pacbayes-fl run polynomial {example}",))


def _aggregation(name: str) -> Description:
    rule = AGGREGATIONS[name]
    promise = f"of {rule.needs(1)} clients or more one can send anything, of {rule.needs(2)} or more two"
    facts = [
        ("weights", "count" if rule.weighted else "clients have to weigh alike: method.weighting = 'uniform'"),
        ("faulty", promise if rule.robust else "nothing is promised of clients that send anything"),
    ]
    if name == "mean":
        facts.append(("privacy", "of a round nothing but a noisy sum is released"))
    else:
        facts.append(("privacy", "refused: noise is accounted for a sum of clipped steps"))
        facts.append(("memory", "the server keeps the steps of all clients of a round"))
    example = f"pacbayes-fl run polynomial --set federation.aggregate={name}"
    return Description("rule of aggregation", name, rule.title, tuple(facts), (), (example,))


def _table(name: str) -> Description:
    kind = _tables()[name]
    title = (kind.__doc__ or "").partition("\n")[0]
    options = {key: one for key, one in options_of(kind).items() if not dataclasses.is_dataclass(one.default)}
    first, *_ = options.values()
    example = (
        f"pacbayes-fl run polynomial --set {name}.{first.name}={_value(1 if first.default is None else first.default)}"
    )
    return Description("table of a study", name, title, (), _options(f"options of [{name}]", options), (example,))
