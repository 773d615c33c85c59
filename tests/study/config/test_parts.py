"""Tables of a study: every range that an option declares is enforced, and said with the table's name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import pytest

from pacbayes_fl import options
from pacbayes_fl.errors import PacBayesFLError, PrivacyError, StudyError
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.options import Range
from pacbayes_fl.study.config.parts import (
    SEEN,
    CertifyPart,
    DataPart,
    DeployPart,
    FederationPart,
    HeldOutPart,
    MethodPart,
    PrivacyPart,
    ReportPart,
)

PARTS: dict[str, tuple[type, type[PacBayesFLError]]] = {
    "[data]": (DataPart, StudyError),
    "[data.test]": (HeldOutPart, StudyError),
    "[federation]": (FederationPart, StudyError),
    "[report]": (ReportPart, StudyError),
    "[report.certify]": (CertifyPart, StudyError),
    "[privacy]": (PrivacyPart, PrivacyError),
    "[deploy]": (DeployPart, StudyError),
}


def outside(allowed: Range) -> list[float]:
    """Give numbers just outside of a range, by its bounds and nothing else."""
    low, high, above, below = allowed.low, allowed.high, allowed.above, allowed.below
    under = [low - 1, math.nextafter(low, -math.inf)] if low is not None else [above] if above is not None else []
    over = [math.nextafter(high, math.inf)] if high not in (None, math.inf) else [below] if below is not None else []
    return [number for number in (*under, *over, math.nan) if number is not None]


@pytest.mark.parametrize("where", PARTS)
def test_a_number_outside_of_a_declared_range_is_refused(where: str) -> None:
    part, error = PARTS[where]
    known = {name: one for name, one in options.options_of(part).items() if one.range != Range()}
    assert known, "a table without any range: is this test still of its parts?"
    for name, one in known.items():
        for number in outside(one.range):
            with pytest.raises(error) as caught:
                part(**{name: number})
            assert str(caught.value).startswith(f"{where} {name} must be {one.range}, got {number:g}")


def test_numbers_have_the_ranges_that_they_always_had() -> None:
    ranges = {f"{where} {n}": str(o.range) for where, (part, _) in PARTS.items() for n, o in known(part).items()}
    assert ranges == {
        "[data.test] share": "strictly between 0 and 1",
        "[data] classes": "from 2 to 65536",
        "[data] transform_lambda": "from 0 to 2",
        "[federation] rounds": "at least 0",
        "[federation] cohort": "at least 1",
        "[federation] min_clients": "at least 1",
        "[federation] chunk": "at least 1",
        "[federation] waste": "at least 1",
        "[federation] threads": "at least 1",
        "[federation] checkpoint_every": "at least 1",
        "[federation] diverges_at": "above 1",
        "[federation] faulty": "at least 0",
        "[federation] clip_multiple": "positive and finite",
        "[federation] average_last": "from 0 to 1",
        "[report] calibration_bins": "at least 1",
        "[report] evaluate_every": "at least 1",
        "[report] interval_blocks": "at least 2",
        "[report.certify] share": "strictly between 0 and 1",
        "[report.certify] folds": "at least 2",
        "[report.certify] tried": "at least 1",
        "[report.certify] twins": "at least 0 and below 1",
        "[report.certify] tables": "at least 1",
        "[privacy] epsilon": "from 1e-08 to 1e+08",
        "[privacy] delta": "at least 0 and below 1",
        "[privacy] candidate_step": "above 0 and at most 1",
        "[privacy] candidates": "from 2 to 100000",
        "[privacy] clip": "positive and finite",
        "[privacy] clip_quantile": "strictly between 0 and 1",
        "[privacy] clip_rate": "positive and finite",
        "[privacy] clip_noise": "positive and finite",
        "[privacy] subspace": "at least 1",
        "[privacy] multiplier": "positive and finite",
        "[privacy] side_share": "above 0 and at most 0.3",
        "[privacy] total": "from 1e-08 to 1e+08",
        "[deploy] deadline": "positive and finite",
    }


def known(part: type) -> dict[str, options.Option]:
    """Return the options with a range."""
    return {name: one for name, one in options.options_of(part).items() if one.range != Range()}


def test_every_option_has_a_meaning() -> None:
    for part, _ in PARTS.values():
        silent = [name for name, one in options.options_of(part).items() if not one.meaning]
        assert not silent, f"{part.__name__} does not say what {', '.join(silent)} mean"


def test_the_federation_is_that_of_its_plan_but_for_the_rounds() -> None:
    plan, part = options.options_of(FederationPlan), options.options_of(FederationPart)
    shared = [name for name in plan if name in part]
    assert shared == [name for name in plan if name != "seed"]
    kind, word = get_args(part["rounds"].kind)  # a study may leave their number open
    assert kind is plan["rounds"].kind and get_args(word) == part["rounds"].names == ("held-out",)
    part["rounds"] = part["rounds"]._replace(kind=kind, names=())
    assert part["aggregate"].kind is str, "a study says its name, and a program may give the rule itself"
    part["aggregate"] = part["aggregate"]._replace(kind=plan["aggregate"].kind)
    for name in shared:
        assert part[name]._replace(default=plan[name].default) == plan[name]
        assert part[name].default == (400 if name == "rounds" else plan[name].default)


def test_options_that_do_not_go_together_are_refused() -> None:
    wrong: list[tuple[type, dict[str, Any], str]] = [
        (DataPart, {"time": "y"}, "[data] time must be a column of its own, got 'y'"),
        (DataPart, {"column_scale": {"a": "big"}}, "[data] column_scale of 'a' must be one of 'client', "),
        (PrivacyPart, {"mechanism": "paper_algorithm_3", "multiplier": 1.0}, "[privacy] multiplier is not for paper"),
    ]
    for part, values, text in wrong:
        with pytest.raises(PacBayesFLError) as caught:
            part(**values)
        assert str(caught.value).startswith(text)


def test_parts_are_values() -> None:
    for part in (*(part for part, _ in PARTS.values()), MethodPart):
        assert part() == part()
        with pytest.raises(dataclasses.FrozenInstanceError):
            part().nothing = 1


def test_how_methods_see_columns_is_nothing_of_which_rows_there_are() -> None:
    given: dict[str, Any] = {"scale": "shrunk", "column_scale": {"y": "none"}, "client_inputs": "summaries"}
    given |= {
        "lower_bound": 0.0,
        "upper_bound": 1.0,
        "transform": "logit",
        "transform_lambda": 1.0,
        "ranges": {"y": [0, 1]},
    }
    assert set(given) == set(SEEN) and DataPart(**given).rows == DataPart().rows == DataPart()
    assert DataPart(source="mine.csv", scale="pooled").rows != DataPart().rows


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        (
            {"time": "t", "zone": "Europe/Zurih"},
            r"zone: there is no time zone 'Europe/Zurih' \(did you mean 'Europe/Zur",
        ),
        ({"zone": "UTC"}, r"\[data\] zone needs \[data\] time"),
        ({"test": HeldOutPart(last="1 day")}, r"\[data\.test\] last needs \[data\] time"),
        ({"horizon": "soon"}, r"horizon must be a length of time, got 'soon' \(such as \"24h\""),
        ({"features": ("y",)}, "features must be columns of their own, each once, got 'y'"),
        ({"categorical": ("roof", "roof")}, "categorical must be columns of their own, each once, got 'roof'"),
        ({"categories": {"roof": ["flat"]}}, r"'roof' is not in \[data\] categorical"),
        ({"categorical": ("roof",), "categories": {"roof": ["a", "a"]}}, "must be a list of words, each once"),
    ],
)
def test_keys_of_columns_that_cannot_be_meant_are_refused(given: dict[str, Any], fragment: str) -> None:
    with pytest.raises(StudyError, match=fragment):
        DataPart(**given)
