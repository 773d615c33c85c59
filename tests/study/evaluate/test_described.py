"""What is said of a run does not depend on where its clients are."""

from __future__ import annotations

from pacbayes_fl.study.data import load
from pacbayes_fl.study.evaluate import described
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.run import report, train


def test_the_columns_and_their_scaling_say_it_all() -> None:
    study = Study.from_toml("polynomial", ["federation.rounds=1", "method.particles=1"])
    trained = train(study)
    result, schema = report(trained), load(study)
    about = trained.method, 1, schema, trained.groups["existing"].shared
    said = described.labels(study, *about, result.clients, result.rounds)
    assert said == {key: value for key, value in result.labels.items() if key in said}
    assert said["scaling"] == {"across clients": "x, y"} and said["round"] == 1
