"""What can be named in a study, with a line on each."""

from __future__ import annotations

from pacbayes_fl.cli.listing import LISTED
from pacbayes_fl.data.partitions import PARTITIONS
from pacbayes_fl.methods import METHODS
from pacbayes_fl.posteriors.weights.families import FAMILIES
from pacbayes_fl.privacy.kinds import MECHANISMS
from pacbayes_fl.results.metrics import METRICS
from pacbayes_fl.results.recorded import RECORDED
from pacbayes_fl.server.aggregations import AGGREGATIONS
from pacbayes_fl.study.config.listing import BUNDLED, listing
from pacbayes_fl.study.config.models import KINDS


def test_listings_name_what_there_is() -> None:
    assert dict(listing("methods")) == {name: recipe.title for name, recipe in METHODS.items()}
    assert [name for name, _ in listing("studies")] == sorted(file.stem for file in BUNDLED.glob("*.toml"))
    assert [name for name, _ in listing("metrics")] == list(METRICS)
    assert [name for name, _ in listing("recorded")] == list(RECORDED)
    assert {"polynomial", "pv-ew", "pv-s", "mnist", "cifar10", "femnist", "FILE.csv"} <= {
        name for name, _ in listing("data")
    }
    for what, records in (
        *(("models", KINDS), ("partitions", PARTITIONS)),
        *(("mechanisms", MECHANISMS), ("families", FAMILIES), ("aggregations", AGGREGATIONS)),
    ):
        assert dict(listing(what)) == {name: one.title for name, one in records.items()}
    for what in (name for name in LISTED if name not in ("bounds", "losses")):  # which certify lists
        assert all(text and "\n" not in text and "#" not in text for _, text in listing(what))
    assert dict(listing("studies"))["pv-ew-150"].endswith("test 1 July-30 August.")  # all of the comment
