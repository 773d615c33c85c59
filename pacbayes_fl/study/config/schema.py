"""JSON Schema of a study (draft 2020-12), with which editors complete, explain and check study files.

Everything in it is read from the dataclasses of a study's tables and from the records of methods and sources of data.
It accepts every study that can be run, and some that cannot, for it does not say how several options go together.
"""

from __future__ import annotations

import dataclasses
import math
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, Union, get_args, get_origin

from pacbayes_fl import settings
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods import METHODS
from pacbayes_fl.options import OpenNames, Option, Range, options_of
from pacbayes_fl.results.records import SIMULATED_EPSILON
from pacbayes_fl.study.config import sources as study_sources
from pacbayes_fl.study.config.keys import PARTS
from pacbayes_fl.study.config.models import KINDS, kinds_over
from pacbayes_fl.study.config.parts import SEEN, DataPart, MethodPart
from pacbayes_fl.study.file import Study

Schema = JsonTable


DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_DEFINED: Final = "#/$defs/{}"
_FOLDER: Final = r"/[^./:]*$"  # a source that is a folder of images
_ARRAYS: Final = r"\.[nN][pP][zZ]$"
_BUDGETS: Final = ("epsilon", SIMULATED_EPSILON)  # of which [privacy] has to give one


def schema() -> Schema:
    """Write the JSON Schema of a study.

    A chain of if, then and else gives [method] and [model] the options of the method that `method.name` says. Editors
    that do not follow it complete the options of all methods.

    Returns:
        The schema, of plain values.

    Example:
        >>> from pacbayes_fl.study.config.schema import schema
        >>> schema()["title"]
        'Study of pacbayes_fl'
    """
    study = options_of(Study)
    models = {_model(over): _models_over(over) for over in dict.fromkeys(kind.over for kind in KINDS.values())}
    sources = {
        _source(names[0]): _sourced(names) for names in (*_alike(), [study_sources.FOLDER], [study_sources.ARRAYS])
    }
    methods = {_method(name): _table(recipe.options, recipe.title) for name, recipe in METHODS.items()}
    return {
        "$schema": DRAFT,
        "title": "Study of pacbayes_fl",
        "description": "Everything that a run depends on: pacbayes-fl run STUDY.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "pattern": r"\S", "description": _sentence(study["name"].meaning)},
            "seed": _property(study["seed"]),
            "data": _data(sources),
            "model": {"description": "Table [model].", "type": "object", "properties": _union(models)},
            "method": {
                "description": "Table [method]: its name, a preset, and the method's own options.",
                "type": "object",
                "properties": {**_chosen(), **_union(methods)},
            },
            **{part: _defined(part) for part in dict(PARTS) if part != "privacy"},
            "privacy": {"allOf": [_defined("privacy"), {"anyOf": [{"required": [key]} for key in _BUDGETS]}]},
            "methods": _overrides(),
        },
        **_by_method(),
        "$defs": {
            **{part: _table(kind) for part, kind in PARTS if part != "privacy"},
            "privacy": _private(dict(PARTS)["privacy"]),
            **models,
            **methods,
            **sources,
        },
    }


def _reference() -> Schema:
    return {"type": "string", "pattern": ":"}


def _own() -> Schema:
    return {**_reference(), "description": "An object of your own, such as mine.py:NAME or package.module:NAME."}


def _own_methods() -> Schema:
    return {"patternProperties": {":": {"type": "object"}}, "additionalProperties": False}


def _defined(name: str) -> Schema:
    return {"$ref": _DEFINED.format(name)}


def _method(name: str) -> str:
    return f"method.{name}"


def _model(over: str) -> str:
    return f"model.{over}"


def _models_over(over: str) -> Schema:
    """Table [model] of methods on functions or on weights, by its kind where kinds have tables of their own."""
    kinds = {name: KINDS[name] for name in kinds_over(over)}
    tables = {name: _table(kind.table) for name, kind in kinds.items()}
    usual, *_ = tables
    titles = [{"const": name, "description": kind.title} for name, kind in kinds.items()]
    chosen = {"kind": {"description": "Kind of model.", "default": usual, "anyOf": [*titles, _own()]}}
    for table in tables.values():
        table["properties"] = chosen | {key: one for key, one in table["properties"].items() if key != "kind"}
    others = [({"kind": {"const": name}}, table) for name, table in tables.items() if table != tables[usual]]
    others.append(({"kind": _reference()}, {"type": "object"}))
    title = {"title": f"Model over {over}", "type": "object", "properties": tables[usual]["properties"]}
    return (title | _switch(others, tables[usual])) if others else tables[usual] | title


def _switch(cases: Iterable[tuple[Schema, Schema]], otherwise: Schema) -> Schema:
    """Choose a schema by keys: that of the first case of which all keys are there as they should be."""
    chain = otherwise
    for keys, chosen in reversed([*cases]):
        chain = {"if": {"properties": keys, "required": [*keys]}, "then": chosen, "else": chain}
    return chain


def _private(kind: type) -> Schema:
    """Table [privacy], whose epsilon has another name in a simulation."""
    table = _table(kind)
    return table | {"properties": {**table["properties"], SIMULATED_EPSILON: table["properties"]["epsilon"]}}


def _chosen() -> Schema:
    """Keys of [method] that choose: the name, and a preset of any method."""
    usual = options_of(MethodPart)
    titles = [{"const": name, "description": recipe.title} for name, recipe in METHODS.items()]
    presets = dict.fromkeys(preset for recipe in METHODS.values() for preset in recipe.presets)
    return {
        "name": {"description": "Name of the method.", "default": usual["name"].default, "anyOf": [*titles, _own()]},
        "preset": {
            "description": "Values of the options that the study leaves out.",
            "default": usual["preset"].default,
            "enum": [*presets],
        },
    }


def _union(tables: Mapping[str, Schema]) -> Schema:
    """Offer the options of several tables, each once, in the first table's order."""
    result: dict[str, list[str]] = {}
    for place, table in tables.items():
        for name in table["properties"]:
            result.setdefault(name, []).append(place)
    return {
        name: {"anyOf": [_defined(f"{place}/properties/{name}") for place in places]} for name, places in result.items()
    }


def _alike() -> list[list[str]]:
    """Group the sources of data by the dataclass of their options, all sets of images together."""
    result: dict[str, list[str]] = {}
    for name in study_sources.every():
        keys = "\n".join(study_sources.options_of(name))
        result.setdefault(keys, []).append(name)
    return [*result.values()]


def _source(name: str) -> str:
    return f"data.{name.rstrip('/')}"  # a slash ends a step of a reference


def _sourced(names: Sequence[str]) -> Schema:
    """Describe [data.options] of sources that have the same options."""
    return _properties(study_sources.options_of(names[0])) | {"title": f"Options of {', '.join(names)}"}


def _data(sources: Mapping[str, Schema]) -> Schema:
    """Table [data], whose options are those of its source."""
    table = _table(DataPart)
    known = {"enum": [*study_sources.every()]}
    properties = table["properties"]
    properties["source"] |= {"anyOf": [known, {"type": "string"}]}
    properties["options"] |= {"properties": _union(sources)}
    options = {names[0]: {"properties": {"options": _defined(_source(names[0]))}} for names in _alike()}
    cases: list[tuple[Schema, Schema]] = [({"source": {"enum": names}}, options[names[0]]) for names in _alike()]
    for pattern, name in ((_FOLDER, study_sources.FOLDER), (_ARRAYS, study_sources.ARRAYS)):
        own = {"properties": {"options": _defined(_source(name))}}
        cases.append(({"source": {"pattern": pattern}}, own))
    usual = next(names[0] for names in _alike() if properties["source"]["default"] in names)
    return table | _switch([*cases, ({"source": {}}, {})], options[usual])


def _overrides() -> Schema:
    """Table [methods]: what a study says of single methods, whichever of them runs."""
    own = {}
    for name, recipe in METHODS.items():
        parts = {"method": _method(name), "model": _model(recipe.model), **{part: part for part, _ in PARTS}}
        properties = {part: _defined(place) for part, place in parts.items()}
        seen = {key: {"$ref": f"#/properties/data/properties/{key}"} for key in SEEN}
        properties["data"] = {"type": "object", "properties": seen, "additionalProperties": False}
        own[name] = {"type": "object", "properties": properties, "additionalProperties": False}
    text = "Values for single methods, such as [methods.pac-pfl.method]; they stand above those of the study's tables."
    return {"description": text, "type": "object", "properties": own, **_own_methods()}


def _by_method() -> Schema:
    """Chain the methods: the one that is named, or else the default."""
    usual = str(options_of(MethodPart)["name"].default)
    cases = [
        ({"method": {"properties": {"name": {"const": name}}, "required": ["name"]}}, _options_of_method(name))
        for name in METHODS
        if name != usual
    ]
    own = {"method": {"properties": {"name": _reference()}, "required": ["name"]}}
    cases.append((own, {}))  # whose options are not known here
    return _switch(cases, _options_of_method(usual))


def _options_of_method(name: str) -> Schema:
    """What [method] and [model] may hold of a method, and nothing else."""
    recipe = METHODS[name]
    own = {option: _defined(f"{_method(name)}/properties/{option}") for option in options_of(recipe.options)}
    method = {"name": {}, "preset": {"enum": [*recipe.presets]}, **own}
    return {
        "properties": {
            "method": {"properties": method, "additionalProperties": False},
            "model": _defined(_model(recipe.model)),
        }
    }


def _table(kind: type, title: str = "") -> Schema:
    """Describe a table by the dataclass that it becomes."""
    head = {"title": title} if title else {"description": (kind.__doc__ or "").partition("\n")[0]}
    return head | _properties(options_of(kind))


def _properties(options: Mapping[str, Option]) -> Schema:
    """Describe a table that has these options and no others."""
    properties = {name: _property(option) for name, option in options.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(option: Option) -> Schema:
    text = " ".join([_sentence(option.meaning), *([f"Symbol: {option.symbol}."] if option.symbol else [])]).strip()
    default = {} if option.default is dataclasses.MISSING else {"default": settings.plain(option.default)}
    return {**({"description": text} if text else {}), **default, **_values(option.kind, option)}


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _values(kind: object, option: Option) -> Schema:
    """Describe the values of a type, with the range and names of the option that has it."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _alternatives([_values(part, option) for part in parts])
    if origin is Literal:
        return {"enum": [*parts]}
    if origin is tuple:
        return {"type": "array", "items": _values(parts[0], option)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _table(kind)
    if kind in (int, float):
        return _number(kind, option.range)
    if kind is str and option.names:
        known = {"enum": [*option.names]}
        return {"anyOf": [known, _own()]} if isinstance(option.names, OpenNames) else known
    if origin is os.PathLike:
        return {"type": "string"}
    plain: dict[object, Schema] = {
        type(None): {"enum": [settings.NONE]},
        bool: {"type": "boolean"},
        str: {"type": "string"},
    }
    return plain.get(kind, {"type": "object"})


def _alternatives(every: list[Schema]) -> Schema:
    """Join alternatives, words of all of them in one list."""
    values = [word for each in every if "enum" in each for word in each["enum"]]
    others = [each for each in every if "enum" not in each]
    others = [each for i, each in enumerate(others) if each not in others[:i]]
    joined = [*others, *([{"enum": values}] if values else [])]
    return joined[0] if len(joined) == 1 else {"anyOf": joined}


def _number(kind: type, bounds: Range) -> Schema:
    """Describe a number by the range of its option inside that of all numbers of a study."""
    least, most = settings.limits(kind)
    low = least if bounds.low is None else max(least, bounds.low)
    high = most if bounds.high is None or math.isinf(bounds.high) else min(most, bounds.high)
    said = {"minimum": low, "maximum": high, "exclusiveMinimum": bounds.above, "exclusiveMaximum": bounds.below}
    return {
        "type": "integer" if kind is int else "number",
        **{word: bound for word, bound in said.items() if bound is not None},
    }
