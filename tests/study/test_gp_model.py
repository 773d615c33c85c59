"""Table [model] of Gaussian processes: what it makes is as large as it says."""

from __future__ import annotations

from pacbayes_fl.study.gp_model import GPModel, fully_connected


def test_weights_are_counted_before_a_prior_is_made() -> None:
    mean, kernel = (5 + 1) * 4 + (4 + 1), (5 + 1) * 6 + (6 + 1) * 3 + (3 + 1) * 2
    assert GPModel((4,), (6, 3), 2, linear="none").size(5, None).weights == mean + kernel
    started = GPModel((4,), (6, 3), 2, linear="zero")
    assert started.size(5, None).weights == mean + kernel + 5 + 1 + 1 + 1 == started.build((5,)).dim - 1  # the noise
    fewer = GPModel((4,), (6, 3), 2, linear="zero", linear_kernel=False)
    assert fewer.size(5, None).weights == mean + kernel + 5 + 1 + 1 == fewer.build((5,)).dim - 1
    noisy = GPModel((4,), (6, 3), 2, linear="none", noise_widths=(3,), noise_spread=0.25, linear_kernel=True)
    assert noisy.size(5, None).weights == mean + kernel + (5 + 1) * 3 + (3 + 1) + 1 == noisy.build((5,)).dim - 1
    spreads = noisy.build((5,)).spreads()
    assert spreads is not None and spreads.prior[1] == 0.25  # the first weight of the noise network


def test_a_network_has_weights_and_biases() -> None:
    assert fully_connected((5, 3, 1)) == 5 * 3 + 3 + 3 + 1 and fully_connected((4,)) == 0
