"""Matching of units against enumeration, and what permuted copies and a single client give back."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.server.matching import Matching, nearest

FIRST = np.array([[1.0, 0.0], [0.0, 2.0]])
SECOND = np.array([[0.1, 1.9], [1.1, -0.1], [-1.0, -1.0]])
TEN = Matching(sigma0=math.sqrt(10), sweeps=0)


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_gains_and_atoms_of_five_units() -> None:
    gains = TEN.gains(SECOND, FIRST, np.ones(2, dtype=np.int64), 2, 3)
    expected = [
        [1.386147186147, 3.611255411255, 1.904614729789, 0.518320368669, -0.292609847547],
        [1.195670995671, -1.341125541126, -0.277203452029, -1.663497813149, -2.474428029365],
        [-0.432900432900, -2.683982683983, 0.431887457062, -0.954406904058, -1.765337120274],
    ]
    np.testing.assert_allclose(gains, expected, rtol=0, atol=1e-11)
    places, atoms = TEN.match([FIRST, SECOND], 5, random())
    a, b = places[0]  # in either order: the first client's units are alike new
    assert {a, b} == {0, 1} and places[1].tolist() == [b, a, 2]
    best = max(sum(gains[i, k] for i, k in enumerate(one)) for one in itertools.permutations(range(5), 3))
    assert gains[range(3), [1, 0, 2]].sum() == pytest.approx(best, abs=1e-12)
    assert best == pytest.approx(5.238813863988, abs=1e-11)
    means = [[1, -0.047619047619], [0.047619047619, 1.857142857143], [-0.909090909091, -0.909090909091]]
    np.testing.assert_allclose(atoms[[a, b, 2]], means, rtol=0, atol=1e-11)


def test_sweeps_do_not_lose_what_the_first_pass_has() -> None:
    """Two clients of a common unit each: whatever was first, the popular matches are found."""
    base = random(1).normal(size=(4, 6)) * 3
    units = [base + 0.01 * random(j).normal(size=base.shape) for j in range(2, 5)]
    orders = [random(9 + j).permutation(4) for j in range(3)]
    for sweeps in (0, 3):
        places, atoms = Matching(sweeps=sweeps).match([u[o] for u, o in zip(units, orders, strict=True)], 8, random())
        assert len(atoms) == 4
        by_base = [dict(zip(o.tolist(), p.tolist(), strict=True)) for o, p in zip(orders, places, strict=True)]
        assert by_base[0] == by_base[1] == by_base[2]
        expected = sum(units) / (3 + 1 / 9)
        np.testing.assert_allclose(atoms[[by_base[0][i] for i in range(4)]], expected, atol=1e-12)


def test_a_permuted_copy_gives_the_network_back() -> None:
    net, order = random().normal(size=(5, 7)), np.array([3, 0, 4, 1, 2])
    places, atoms = Matching(sigma0=1e6, sweeps=2).match([net, net[order]], 5, random())
    np.testing.assert_allclose(atoms[places[0]], net, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(places[1], places[0][order])


def test_one_client_is_shrunk_towards_the_prior() -> None:
    net = random().normal(size=(3, 4))
    places, atoms = Matching(sigma=0.5, sigma0=2.0).match([net], 3, random())
    np.testing.assert_allclose(atoms[places[0]], net / (1 + 0.25 / 4), rtol=0, atol=1e-12)


def test_units_that_are_unlike_begin_atoms_until_there_is_no_room() -> None:
    apart = [10 * np.eye(2, 4), -10 * np.eye(2, 4), 10 * np.eye(2, 4)[:, ::-1]]
    assert len(Matching(sweeps=2).match(apart, 6, random())[1]) == 6
    assert len(Matching(sweeps=2).match(apart, 3, random())[1]) == 3


def test_popular_atoms_gain_more() -> None:
    v, sums = np.ones((1, 2)), np.ones((1, 2))
    for factor, expected in ((1.0, -0.847297860387), (2.0, -1.694595720774)):
        with_it = Matching(popularity=factor).gains(v, sums, np.array([3]), 10, 1)
        without = Matching(popularity=0.0).gains(v, sums, np.array([3]), 10, 1)
        assert (with_it - without)[0, 0] == pytest.approx(expected, abs=1e-11) and (with_it - without)[0, 1] == 0.0


def test_the_nearest_atoms_are_those_of_all_orders() -> None:
    units, atoms = random(3).normal(size=(3, 2)), random(4).normal(size=(5, 2))
    best = min(itertools.permutations(range(5), 3), key=lambda one: np.square(units - atoms[list(one)]).sum())
    assert nearest(units, atoms).tolist() == list(best)


def test_values_out_of_range_are_refused() -> None:
    for wrong in ({"sigma": 0.0}, {"sigma0": -1.0}, {"gamma": 0.0}, {"sweeps": -1}):
        with pytest.raises(StudyError, match=next(iter(wrong))):
            Matching(**wrong)  # type: ignore[arg-type]
