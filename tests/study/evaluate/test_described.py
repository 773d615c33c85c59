"""What is said of a run does not depend on where its clients are."""

from __future__ import annotations

from pacbayes_fl.results.client_rows import ClientRows
from pacbayes_fl.study.data import load
from pacbayes_fl.study.evaluate import described
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.run import report, train
from pacbayes_fl.study.search.held_out import first
from tests.tiny import quick, tiny


def test_the_columns_and_their_scaling_say_it_all() -> None:
    study = Study.from_toml("polynomial", ["federation.rounds=1", "method.particles=1"])
    trained = train(study)
    result, schema = report(trained), load(study)
    about = trained.method, 1, schema, trained.groups["existing"].shared
    said = described.labels(study, *about, result.clients, result.rounds)
    assert said == {key: value for key, value in result.labels.items() if key in said}
    assert said["scaling"] == {"across clients": "x, y"} and said["round"] == 1


def test_particles_are_said_where_a_method_fixes_their_number() -> None:
    study = first(tiny(*quick("pfedgp")))
    dataset = load(study)
    method, groups = prepare(study, dataset)
    said = described.labels(study, method, 1, dataset, groups["existing"].shared, ClientRows.of([]), [])
    assert said["particles"] == 1
