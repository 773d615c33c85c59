"""Partitions of a data set: positions by client and by training, validation and test part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from pacbayes_fl.data.archives import Array
from pacbayes_fl.errors import DataError

LabelGroups = Literal["two", "rotating"]


class Parts(NamedTuple):
    """Rows of one client: positions [m] into the data set, int64, disjoint.

    Args:
        train: rows to learn from.
        validation: rows for choosing among models and rounds; may be empty.
        test: rows to be scored on.
    """

    train: Array
    validation: Array
    test: Array


class Counts(NamedTuple):
    """Rows per class and client."""

    train: int
    validation: int
    test: int


def label_set(client: int, labels_per_client: int, groups: LabelGroups, classes: int) -> tuple[int, ...]:
    """The labels of a client.

    With l labels of C, "two" gives client u the labels (l u + j) mod C, j < l, as the public code of pFedBayes does:
    with 5 of 10 there are two groups of clients, {0..4} and {5..9}. "rotating" gives (u + j) mod C: 10 clients have
    ten different windows.

    Args:
        client: number u of the client.
        labels_per_client: number l of labels.
        groups: which of the two.
        classes: number C of classes.

    Returns:
        The labels.

    Raises:
        DataError: when l is not in 1..C.

    Example:
        >>> from pacbayes_fl.data.partition import label_set
        >>> [label_set(client, 5, "two", classes=10) for client in (0, 1, 2)]
        [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (0, 1, 2, 3, 4)]
        >>> label_set(8, 5, "rotating", classes=10)
        (8, 9, 0, 1, 2)
    """
    if not 1 <= labels_per_client <= classes:
        raise DataError(f"labels_per_client must be in 1..{classes}, got {labels_per_client}")
    start = (labels_per_client if groups == "two" else 1) * client
    return tuple((start + j) % classes for j in range(labels_per_client))


def by_labels(
    y: Array,
    members: Sequence[int],
    labels_per_client: int,
    groups: LabelGroups,
    counts: Counts,
    classes: int,
    generator: np.random.Generator,
    official_test: Array | None = None,
) -> tuple[Parts, ...]:
    """Give every client the same number of rows of each of a few classes.

    Args:
        y: labels [R] in 0..C-1.
        members: numbers u of the K clients, which choose their labels.
        labels_per_client: classes per client.
        groups: see `label_set`.
        counts: rows per class and client.
        classes: number C of classes.
        generator: permutes the rows of each class before they are cut into consecutive blocks.
        official_test: bool [R]; where given, test rows are taken from its True rows and all others from the rest.

    Returns:
        The parts of the K clients; no row is used twice.

    Raises:
        DataError: naming a class with too few rows, how many are needed and how many there are.
    """
    held = [label_set(u, labels_per_client, groups, classes) for u in members]
    blocks: list[list[Parts]] = [[] for _ in members]
    for label in range(classes):
        holders = [k for k, labels in enumerate(held) if label in labels]
        own = y == label
        if official_test is None:
            dealt = _deal(own, len(holders), counts, generator, f"class {label}")
        else:
            learned = counts._replace(test=0)
            scored = Counts(0, 0, counts.test)
            first = _deal(own & ~official_test, len(holders), learned, generator, f"class {label}, training part")
            second = _deal(own & official_test, len(holders), scored, generator, f"class {label}, test part")
            dealt = [Parts(a.train, a.validation, b.test) for a, b in zip(first, second, strict=True)]
        for k, part in zip(holders, dealt, strict=True):
            blocks[k].append(part)
    # Mixed once more: a part that is sorted by class would make classes of a client's folds and minibatches.
    return tuple(Parts(*(generator.permutation(np.concatenate(p)) for p in zip(*own, strict=True))) for own in blocks)


def _deal(members: Array, clients: int, counts: Counts, generator: np.random.Generator, what: str) -> list[Parts]:
    """Cut permuted rows into one consecutive block per client, and each block into its parts."""
    rows = generator.permutation(np.flatnonzero(members))
    each = sum(counts)
    if len(rows) < clients * each:
        raise DataError(
            f"{what}: {clients} clients with {each} rows each need {clients * each} rows, there are {len(rows)}",
            hint="take fewer rows per class (train, validation, test) or fewer clients",
        )
    blocks = rows[: clients * each].reshape(clients, each)
    cuts = (counts.train, counts.train + counts.validation)
    return [Parts(*np.split(block, cuts)) for block in blocks]


def dirichlet(
    y: Array,
    clients: int,
    alpha: float,
    classes: int,
    generator: np.random.Generator,
    *,
    test_share: float,
    validation_share: float = 0.0,
    minimum: int = 1,
    official_test: Array | None = None,
) -> tuple[Parts, ...]:
    """Share out all rows with skewed labels: of each class, the clients get shares p ~ Dirichlet(alpha, ..., alpha).

    A client that is left with too few rows gets some from the client with the most.

    Args:
        y: labels [R] in 0..C-1.
        clients: number K of clients.
        alpha: concentration, positive; small values give clients few classes and unequal sizes.
        classes: number C of classes.
        generator: draws shares and permutes rows.
        test_share: share of each client's rows to be scored on, without `official_test`.
        validation_share: share of each client's rows for validation (of its training rows, with `official_test`).
        minimum: rows that each client gets at least (of the training part, with `official_test`).
        official_test: bool [R]; where given, its True rows are shared out as test rows, with the same shares.

    Returns:
        The parts of the K clients; together they hold every row once.

    Raises:
        DataError: when there are too few rows for all clients, or a share is out of range.

    Example:
        >>> import numpy as np
        >>> from pacbayes_fl.data.partition import dirichlet
        >>> y, random = np.arange(600) % 10, np.random.default_rng(0)
        >>> parts = dirichlet(y, clients=5, alpha=0.1, classes=10, generator=random, test_share=0.25)
        >>> sum(len(part.train) + len(part.test) for part in parts)  # every row once
        600
    """
    if not alpha > 0:
        raise DataError(f"alpha must be positive, got {alpha:g}")
    shares = generator.dirichlet(np.full(clients, alpha), size=classes)
    pool = np.arange(len(y))
    if official_test is None:
        return tuple(
            _split(rows, test_share, validation_share, generator)
            for rows in _by_shares(y, pool, shares, minimum, generator)
        )
    learned = _by_shares(y, pool[~official_test], shares, minimum, generator)
    scored = _by_shares(y, pool[official_test], shares, 1, generator)
    return tuple(
        _set_apart(fit, test, round(validation_share * len(fit))) for fit, test in zip(learned, scored, strict=True)
    )


def _by_shares(y: Array, pool: Array, shares: Array, minimum: int, generator: np.random.Generator) -> list[Array]:
    """Share out the rows of a pool: `shares` [C, K] of each class; every client's rows are permuted."""
    clients = shares.shape[1]
    if len(pool) < clients * minimum:
        raise DataError(
            f"{clients} clients with at least {minimum} rows each need {clients * minimum} rows, there are {len(pool)}",
            hint="take fewer clients or a smaller minimum",
        )
    owned: list[list[Array]] = [[] for _ in range(clients)]
    for label, share in enumerate(shares):
        rows = generator.permutation(pool[y[pool] == label])
        cuts = np.rint(np.cumsum(share)[:-1] * len(rows)).astype(np.int64)
        for own, part in zip(owned, np.split(rows, cuts), strict=True):
            own.append(part)
    dealt = [generator.permutation(np.concatenate(own)) for own in owned]
    while min(map(len, dealt)) < minimum:  # ends: as long as one has too few, another has more than enough
        sizes = [len(rows) for rows in dealt]
        poor, rich = sizes.index(min(sizes)), sizes.index(max(sizes))
        given = min(minimum - sizes[poor], sizes[rich] - minimum)
        dealt[poor] = np.concatenate((dealt[poor], dealt[rich][-given:]))
        dealt[rich] = dealt[rich][:-given]
    return dealt


def natural(
    y: Array,
    owner: Array,
    clients: int,
    generator: np.random.Generator,
    *,
    test_share: float,
    validation_share: float = 0.0,
    minimum: int = 2,
    labels: Sequence[int] | None = None,
    official_test: Array | None = None,
) -> dict[int, Parts]:
    """Make each of some owners (the writers of FEMNIST) a client with all of its rows.

    Args:
        y: labels [R].
        owner: number of each row's owner [R].
        clients: number K of owners to draw.
        generator: draws the owners and permutes their rows.
        test_share: share of each owner's rows to be scored on, without `official_test`.
        validation_share: share of each owner's rows for validation (of its training rows, with `official_test`).
        minimum: rows that an owner must have to be drawn.
        labels: keep only rows of these labels.
        official_test: bool [R]; where given, each owner's True rows are its test rows.

    Returns:
        The parts by owner, in the order in which they were drawn.

    Raises:
        DataError: when fewer than K owners have enough rows (with `official_test`, rows on both sides).
    """
    kept = np.ones(len(y), dtype=bool) if labels is None else np.isin(y, labels)
    owners = int(owner.max()) + 1
    enough = np.bincount(owner[kept], minlength=owners) >= max(minimum, 1)
    for side in () if official_test is None else (official_test, ~official_test):
        enough &= np.bincount(owner[kept & side], minlength=owners) > 0
    if enough.sum() < clients:
        where = "" if official_test is None else " and both training and test rows"
        raise DataError(
            f"{clients} clients are asked for, but only {enough.sum()} owners have at least {minimum} rows{where}",
            hint="take fewer clients or a smaller minimum",
        )
    parts = {}
    for i in generator.permutation(np.flatnonzero(enough))[:clients].tolist():
        rows = np.flatnonzero(kept & (owner == i))
        if official_test is None:
            parts[i] = _split(rows, test_share, validation_share, generator)
        else:
            fit, test = (generator.permutation(rows[official_test[rows] == side]) for side in (False, True))
            parts[i] = _set_apart(fit, test, round(validation_share * len(fit)))
    return parts


def limited(parts: Sequence[Parts], limit: int, generator: np.random.Generator) -> tuple[Parts, ...]:
    """Leave every client at most so many training rows, drawn at random; a smaller limit keeps some of a larger one's.

    Args:
        parts: of the K clients.
        limit: training rows that a client keeps at most, at least 1.
        generator: draws the rows.

    Returns:
        The parts of the K clients, with all of their validation and test rows.

    Raises:
        DataError: when the limit is less than 1.

    Example:
        >>> import numpy as np
        >>> from pacbayes_fl.data.partition import Parts, limited
        >>> part = Parts(train=np.arange(100), validation=np.arange(0), test=np.arange(100, 120))
        >>> (few,) = limited([part], 10, np.random.default_rng(0))
        >>> len(few.train), len(few.test)
        (10, 20)
    """
    if limit < 1:
        raise DataError(f"limit must be at least 1, got {limit}")
    return tuple(
        client_parts._replace(train=generator.permutation(client_parts.train)[:limit]) for client_parts in parts
    )


def _split(rows: Array, test_share: float, validation_share: float, generator: np.random.Generator) -> Parts:
    """Split one client's rows at random, with at least one row to be scored on."""
    if not 0 < test_share < 1:
        raise DataError(f"test_share must be between 0 and 1, got {test_share:g}")
    mixed = generator.permutation(rows)
    held = max(1, round(test_share * len(rows)))
    return _set_apart(mixed[held:], mixed[:held], round(validation_share * len(rows)))


def _set_apart(rows: Array, test: Array, count: int) -> Parts:
    """Set the first of permuted rows apart for validation, and keep at least one to learn from."""
    if not 0 <= count < len(rows):
        raise DataError(
            f"a client has {len(rows)} rows that are not tested on and would keep {count} of them for validation",
            hint="choose other shares, or a larger minimum of rows per client",
        )
    return Parts(rows[count:], rows[:count], test)


def check_disjoint(parts: Sequence[Parts], names: Sequence[str]) -> None:
    """Check by position that no row is used twice: neither by two clients, nor in two parts of one.

    Equal images at different positions pass: the published data sets hold some.

    Args:
        parts: of the K clients, all of one data set.
        names: of the K clients.

    Raises:
        DataError: naming a client and the row.
    """
    used: set[int] = set()
    for name, client_parts in zip(names, parts, strict=True):
        for part in client_parts:
            for row in part.tolist():
                if row in used:
                    raise DataError(f"row {row} is used twice", client=name, hint="partition the rows again")
                used.add(row)
