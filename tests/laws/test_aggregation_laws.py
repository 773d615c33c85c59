"""Laws of rules of aggregation, for every one of the table, and for those of one's own as for the built-in ones."""

from __future__ import annotations

import pytest

from pacbayes_fl.server.aggregations import AGGREGATIONS, AggregationRule, aggregation_named
from pacbayes_fl.testing import AGGREGATION_LAWS, check_aggregation
from tests.user_objects import WITHOUT_FARTHEST

OWN = "tests.user_objects:WITHOUT_FARTHEST"
RULES = (*AGGREGATIONS.known.values(), aggregation_named(OWN))


@pytest.mark.law
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("law", AGGREGATION_LAWS)
def test_every_rule_keeps_every_law(rule: AggregationRule, law: str) -> None:
    check_aggregation(rule, without=[name for name in AGGREGATION_LAWS if name != law])


def test_a_reference_leads_to_the_record_under_its_own_name() -> None:
    rule = aggregation_named(OWN)
    assert rule.name == OWN and rule.join is WITHOUT_FARTHEST.join
