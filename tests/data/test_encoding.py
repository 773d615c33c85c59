"""Categories and medians, which are those of training rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pacbayes_fl.data.encoding import encoded
from pacbayes_fl.data.layout import Layout
from pacbayes_fl.data.user_tables import Table
from pacbayes_fl.errors import DataError

NAN = float("nan")
WORDS = ("east", "flat", "west")


def table(**clients: list[list[float]]) -> Table:
    rows = {name: (torch.tensor(x).double(), torch.zeros(len(x)).double()) for name, x in clients.items()}
    return Table(rows, ("roof", "sun"), None, (), words={"roof": WORDS})


FIRST = table(a=[[1, 1.0], [2, 2.0], [0, 9.0]], b=[[1, 4.0], [1, 5.0]])
LEARNED = {"a": torch.tensor([True, True, False]), "b": torch.tensor([True, True])}


def test_a_word_of_test_rows_alone_is_no_category() -> None:
    with pytest.warns(UserWarning, match="column 'roof': no training row of the federation has 'east' of a"):
        result = encoded(FIRST, LEARNED, Layout(categorical=("roof",)))
    assert result.features == ("roof=flat", "roof=west", "sun")
    assert result.clients["a"][0].tolist() == [[1, 0, 1], [0, 1, 2], [0, 0, 9]]


def test_given_categories_and_those_of_a_run_count_in_their_order() -> None:
    layout = Layout(categorical=("roof",), categories={"roof": ("west", "flat", "east", "none")})
    x = encoded(FIRST, LEARNED, layout).clients["a"][0]
    assert x.tolist() == [[0, 1, 0, 0, 1], [1, 0, 0, 0, 2], [0, 0, 1, 0, 9]]
    made = ("roof=east", "roof=flat", "roof=west", "sun")
    result = encoded(FIRST, {}, Layout(categorical=("roof",)), made, {})
    assert result.features == made and result.clients["b"][0].tolist() == [[0, 1, 0, 4], [0, 1, 0, 5]]


@pytest.mark.parametrize("name", ["roof=flat", "roof=2"])
def test_a_column_named_as_one_that_is_made_of_words_is_refused(name: str) -> None:
    """A run would take it for a word of its roof, and forecast with that in its place."""
    own = Table(
        {"a": (torch.zeros(2, 2).double(), torch.zeros(2))}, ("roof", name), None, (), words={"roof": ("flat", "steep")}
    )
    with pytest.raises(DataError, match=f"column '{name}' has a name as the columns .* words of 'roof' .rename it"):
        encoded(own, {"a": torch.tensor([True, True])}, Layout(categorical=("roof",)))


def test_medians_are_those_of_the_clients_own_training_rows() -> None:
    own = table(a=[[1, 1.0], [1, NAN], [1, 4.0], [1, 2.0], [1, 100.0]], b=[[1, NAN], [NAN, 7.0]])
    learned = {"a": torch.tensor([True] * 4 + [False]), "b": torch.tensor([True, True])}
    layout = Layout(categorical=("roof",), missing="median")
    result = encoded(own, learned, layout)
    assert result.clients["a"][0][:, -1].tolist() == [1, np.median([1, 4, 2]), 4, 2, 100]
    assert result.clients["b"][0].tolist() == [[1, 7], [0, 7]]  # a word that is missing is none of them
    filled = result.clients["a"][0][:4, -1]
    assert float(filled.quantile(0.5)) == 2.0  # which what was filled in does not move
    given = encoded(own, learned, layout, result.features, {"a": torch.tensor([0.0, 3.0]).double()})
    assert given.clients["a"][0][1, -1] == 3.0
    empty = table(a=[[1, NAN], [1, 3.0]])
    with pytest.raises(DataError, match="client 'a': column 'sun' has no value in its training rows"):
        encoded(empty, {"a": torch.tensor([True, False])}, layout)


def test_gaps_stay_where_nothing_fills_them() -> None:
    own = table(a=[[NAN, 1.0], [1, NAN], [1, 2.0]])
    result = encoded(own, {"a": torch.ones(3, dtype=torch.bool)}, Layout(categorical=("roof",), missing="drop"))
    assert result.gaps("a").tolist() == [[False, True, False], [False, False, True], [False, False, False]]
