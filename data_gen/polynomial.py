"""The Polynomial data: noisy draws of Gaussian processes whose means are polynomials.

After Boroujeni, Krause and Ferrari-Trecate, "Personalized Federated Learning of Probabilistic
Models: A PAC-Bayesian Approach" (PAC-PFL), section 8.5.2: two Gaussian-process priors, each with
a polynomial mean of order 7 and an SE kernel, distinct in mean and lengthscale, plus Gaussian
noise; 24 clients of 10 samples. The paper gives no coefficients, law of x, lengthscales, output
scale, noise, test size or new clients: all of those are OUR CHOICE, are given here, and are
recorded in every manifest.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from data_gen import rooms
from data_gen.dataset import Dataset, client_names, finish
from data_gen.errors import DataGenError, fits, number, whole
from data_gen.manifest import variant_tag, versions

CHEBYSHEV: tuple[tuple[float, ...], ...] = (
    (0.10, 0.60, -0.25, 0.20, 0.10, -0.15, 0.05, 0.10),
    (-0.10, -0.40, 0.35, 0.30, -0.15, 0.10, 0.10, -0.10),
)
"""Chebyshev coefficients c_0..c_7 of the means of modes 0 and 1 (our choice)."""

COEFFICIENT_SEED = 7717
"""Seed of the coefficients of modes 2, 3, ...; see ``coefficients``."""

_JITTER = 1e-8
_RELEASED = 1024  # clients, after which the memory of arrays in files is given back
_ASSUMPTIONS = (
    "Our choice, the paper (section 8.5.2) does not give them: coefficients, law of x, lengthscales, "
    "output scale, noise, number of test rows, new clients."
)


@dataclass(frozen=True)
class PolynomialConfig:
    """Options of the Polynomial data (PAC-PFL section 8.5.2; numbers not in the paper are our choice).

    Attributes:
        clients: existing clients, at least 1.
        new_clients: new clients, of the same structure, at least 0.
        samples: training rows of each client, at least 1.
        test_samples: test rows of each client, at least 1.
        modes: Gaussian-process priors; the clients are split among them in equal blocks.
        seed: at least 0; fixes every draw.
        lengthscales: of the SE kernel by mode, cycled when there are more modes.
        outputscale: variance of the SE kernel, above 0.
        noise_std: standard deviation of the Gaussian noise, at least 0.

    Raises:
        DataGenError: an option is out of its range.
    """

    clients: int = 24
    new_clients: int = 24
    samples: int = 10
    test_samples: int = 100
    modes: int = 2
    seed: int = 0
    lengthscales: tuple[float, ...] = (0.2, 0.5)
    outputscale: float = 0.02
    noise_std: float = 0.05

    def __post_init__(self) -> None:
        """Check the ranges."""
        least = {"clients": 1, "new_clients": 0, "samples": 1, "test_samples": 1, "modes": 1, "seed": 0}
        for name, bound in least.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), bound))
        for name in ("outputscale", "noise_std"):
            object.__setattr__(self, name, number(name, getattr(self, name), 0.0))
        try:
            scales = tuple(number("lengthscales", value) for value in self.lengthscales)
        except TypeError as error:
            raise DataGenError(f"lengthscales must be several numbers, is {self.lengthscales!r}") from error
        object.__setattr__(self, "lengthscales", scales)
        if not scales or min(scales) <= 0:
            raise DataGenError(f"lengthscales must be positive, are {scales}")
        if self.outputscale == 0:
            raise DataGenError("outputscale must be positive, is 0")
        rows, clients = self.samples + self.test_samples, self.clients + self.new_clients
        fits(f"a client of {rows} rows", 24 * rows**2, "samples or test_samples")  # gaps, kernel and factor
        fits(f"{clients} clients of {rows} rows", 64 * clients * rows, "clients, new_clients, samples or test_samples")
        fits(f"{self.modes} modes", 1000 * self.modes, "modes")


def coefficients(mode: int) -> npt.NDArray[np.float64]:
    """Give the Chebyshev coefficients of one mode's mean, of degree 7.

    Formula: modes 0 and 1 are ``CHEBYSHEV``; mode j >= 2 has c_k = 0.5 z_k / sqrt(1 + k) with
    z_0..z_7 standard normal from ``numpy.random.default_rng([COEFFICIENT_SEED, j])``, whatever
    the seed of the data. Our choice; PAC-PFL section 8.5.2 says only "order 7".

    Args:
        mode: at least 0.

    Returns:
        c_0..c_7, [8], without unit.

    Raises:
        DataGenError: the mode is negative.
    """
    if mode < 0:
        raise DataGenError(f"mode must be at least 0, is {mode}")
    if mode < len(CHEBYSHEV):
        return np.array(CHEBYSHEV[mode])
    draw = np.random.default_rng([COEFFICIENT_SEED, mode]).standard_normal(8)
    return np.asarray(0.5 * draw / np.sqrt(1.0 + np.arange(8)), dtype=np.float64)


def mean(x: npt.ArrayLike, mode: int) -> npt.NDArray[np.float64]:
    """Give the mean of one mode, m(x) = sum_k c_k T_k(x) (PAC-PFL section 8.5.2; our coefficients).

    Args:
        x: any shape, in [-1, 1], where the Chebyshev polynomials T_k are bounded by 1.
        mode: at least 0.

    Returns:
        Values of the shape of ``x``.

    Raises:
        DataGenError: the mode is negative.
    """
    points = np.asarray(x, dtype=np.float64)
    return np.asarray(np.polynomial.chebyshev.chebval(points, coefficients(mode)), dtype=np.float64)


def mode_of(index: int, count: int, modes: int) -> int:
    """Give the mode of a client: floor(index * modes / count), that is equal blocks in order.

    Args:
        index: of the client among its kind (existing or new).
        count: clients of that kind.
        modes: number of modes.

    Returns:
        The mode, 0..modes-1.
    """
    return index * modes // count


def _draw(
    x: npt.NDArray[np.float64], mode: int, config: PolynomialConfig, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Draw one sample function jointly at all inputs, and its noisy observations."""
    lengthscale = config.lengthscales[mode % len(config.lengthscales)]
    gap = (x[:, None] - x[None, :]) / lengthscale
    kernel = config.outputscale * (np.exp(-0.5 * gap**2) + _JITTER * np.eye(len(x)))
    latent = mean(x, mode) + np.linalg.cholesky(kernel) @ rng.standard_normal(len(x))
    return latent, latent + config.noise_std * rng.standard_normal(len(x))


def generate(config: PolynomialConfig | None = None) -> Dataset:
    """Draw the Polynomial data (PAC-PFL section 8.5.2).

    Formula: x ~ U[-1, 1]; f ~ GP(m_mode, outputscale * exp(-(x - x')^2 / (2 lengthscale^2))),
    one function per client, drawn jointly over its training and test inputs by a Cholesky
    factor with jitter 1e-8 (relative); y = f(x) + N(0, noise_std^2). Client i of each kind draws
    from ``numpy.random.default_rng([seed, kind, i])``, kind 0 existing and 1 new, in the order
    x, function, noise.

    Args:
        config: the options; the defaults if None.

    Returns:
        The data: one feature "x", target "y", both without unit; ``latent`` holds f(x).

    Raises:
        DataGenError: an option is out of its range.
    """
    config = PolynomialConfig() if config is None else config
    size = config.samples + config.test_samples
    total = config.clients + config.new_clients
    x, y, latent = (rooms.zeros(total * size, np.float64) for _ in range(3))
    client, test = rooms.zeros(total * size, np.int64), rooms.zeros(total * size, np.bool_)
    modes = list[int]()
    for kind, count in enumerate((config.clients, config.new_clients)):
        for index in range(count):
            rng = np.random.default_rng([config.seed, kind, index])
            mode = mode_of(index, count, config.modes)
            own = slice(len(modes) * size, (len(modes) + 1) * size)
            x[own] = rng.uniform(-1.0, 1.0, size)
            latent[own], y[own] = _draw(x[own], mode, config, rng)
            client[own], test[own] = len(modes), np.arange(size) >= config.samples
            modes.append(mode)
            if len(modes) % _RELEASED == 0:
                for array in (x, y, latent, client, test):
                    rooms.release(array)
    names = client_names("poly", config.clients, config.new_clients)
    dataset = Dataset(
        x=x[:, None],
        y=y,
        client=client,
        test=test,
        client_name=names,
        client_new=np.arange(total) >= config.clients,
        feature_name=np.array(["x"]),
        feature_unit=np.array(["1"]),
        target_name="y",
        target_unit="1",
        latent=latent,
    )
    manifest = {
        "name": "polynomial",
        "stem": (
            f"polynomial_c{config.clients}_n{config.new_clients}_m{config.samples}_seed{config.seed}"
            + variant_tag(config, ("clients", "new_clients", "samples", "seed"))
        ),
        "arguments": asdict(config) | {"lengthscales": list(config.lengthscales)},
        "seeds": {"data": config.seed, "coefficients": COEFFICIENT_SEED},
        "assumptions": _ASSUMPTIONS,
        "source": "PAC-PFL section 8.5.2",
        "coefficients": [coefficients(mode).tolist() for mode in range(config.modes)],
        "modes": dict(zip(names.tolist(), modes, strict=True)),
        "jitter": _JITTER,
        "versions": versions("numpy"),
    }
    return finish(dataset, manifest)
