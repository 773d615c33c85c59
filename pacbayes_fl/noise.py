"""Random numbers that belong to a client.

A draw for client k depends on (seed, round, client id, draw, position) and on nothing else, so batched, one-by-one,
permuted, re-bucketed and remote runs see the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.errors import DataError, StudyError

Engine = Literal["philox", "generators"]
Kind = Literal["normal", "uniform", "logistic"]

_WORD = 0xFFFFFFFF
_NO_DRAW = 0xFFFFFFFF  # counted down to by no client's own draws
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_KEPT: Final = 2  # draws of weights, normals and uniforms of one hypothesis
_BLOCK: Final = 128  # rows whose normals are drawn in one go
_FEW: Final = 1 << 13  # numbers, up to which operations of torch cost more to start than to do
_FACTORS: Final = np.array(_MULTIPLIERS, np.uint64).reshape(2, 1, 1)
_WEYLS: Final = np.arange(10, dtype=np.uint64).reshape(10, 1, 1, 1) * np.array(_WEYL, np.uint64).reshape(2, 1, 1)
_LOW, _HALF, _TWENTY, _TWELVE = np.uint64(_WORD), np.uint64(32), np.uint64(20), np.uint64(12)

_Words = np.ndarray[Any, np.dtype[np.uint64]]


def _product_high_low(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply 32-bit words, one from 2^31 on, without leaving int64: by factor - 2^32, which takes word 2^32 away."""
    product = word * (factor - (1 << 32))
    return (product >> 32).add_(word), product.bitwise_and_(_WORD)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Turn a counter into four random words by Philox4x32-10 (Salmon et al., SC 2011, section 3.2).

    Args:
        counter: four int64 tensors of 32-bit words, of shapes [*] that broadcast.
        key: two 32-bit words.

    Returns:
        Four int64 tensors [*] of 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _product_high_low(_MULTIPLIERS[0], c0)
        high1, low1 = _product_high_low(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = (high1 ^ c1).bitwise_xor_(k0), low1, (high0 ^ c3).bitwise_xor_(k1), low0
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def _few_words(ids: _Words, blocks: int, draw: int, key: tuple[int, int]) -> tuple[_Words, _Words]:
    """Give the words of `philox` for few counters [K, blocks] by NumPy, whose operations cost a fraction to start.

    Returns:
        Words 0 and 2, and words 1 and 3, each [2, K, blocks].
    """
    left = np.empty((2, len(ids), blocks), np.uint64)
    left[0], left[1] = np.arange(blocks, dtype=np.uint64), (ids >> _HALF)[:, None]
    right = np.empty_like(left)
    right[0], right[1] = (ids & _LOW)[:, None], draw
    for keys_of_round in (np.array(key, np.uint64).reshape(2, 1, 1) + _WEYLS) & _LOW:
        product = left * _FACTORS
        left = product >> _HALF
        left = np.bitwise_xor(left[::-1], right, out=right)
        left ^= keys_of_round
        product &= _LOW
        right = product[::-1]
    return left, right


def keys(seed: int, round: int, ids: Sequence[int]) -> Tensor:
    """Give every client a random number by which to put clients in order, or to draw some of them.

    It depends on (seed, round, id) alone, not on who else there is, and no draw of the client's own streams meets it.

    Args:
        seed: of the experiment.
        round: number of the round.
        ids: of K clients.

    Returns:
        [K], int64 of 63 bits, on the CPU.
    """
    client = torch.tensor(ids, dtype=torch.int64)
    zero = torch.zeros_like(client)
    words = philox((zero, client & _WORD, client >> 32, zero + _NO_DRAW), (seed, round))
    return (words[0] << 31) | (words[1] >> 1)


def generator_from_text(text: str) -> torch.Generator:
    """Give randomness that a text stands for: another text, another stream.

    Args:
        text: says what is drawn, such as "certify/3".

    Returns:
        A generator on the CPU.
    """
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


class Noise:
    """One random stream per client.

    Two engines, recorded with the run: "philox" is counter-based, vectorised over clients and gives the same numbers on
    every device; "generators" re-seeds one `torch.Generator` per client and draws on the CPU. Both are functions of the
    position within the client's flat draw, so that a longer draw begins with the shorter one.

    Args:
        seed: of the experiment, 0 <= seed < 2**32.
        round: round number, 0 <= round < 2**32; 0 is the personalisation after training.
        ids: client ids, 0 <= id < 2**63.
        device: where the numbers are wanted.
        engine: "philox" or "generators".

    Raises:
        StudyError: when seed or round is out of range or the engine unknown.
        DataError: when an id is out of range.

    Example:
        >>> import torch
        >>> from pacbayes_fl.noise import Noise
        >>> three, one = Noise(seed=0, round=1, ids=(7, 8, 9)), Noise(seed=0, round=1, ids=(8,))
        >>> torch.equal(three.normal(torch.zeros(3, 4))[1:2], one.normal(torch.zeros(1, 4)))  # whoever else is there
        True
    """

    def __init__(
        self,
        seed: int,
        round: int,
        ids: Sequence[int],
        device: torch.device | str | None = None,
        engine: Engine = "philox",
    ) -> None:
        """Store the key; nothing is drawn yet."""
        self.seed, self.round, self.ids, self.engine = index(seed), index(round), tuple(map(index, ids)), engine
        for name, number in (("seed", self.seed), ("round", self.round)):
            if not 0 <= number <= _WORD:
                raise StudyError(f"{name} must be in 0..{_WORD}, got {number}")
        if engine not in get_args(Engine):
            raise StudyError(f"noise must be one of {', '.join(get_args(Engine))}, got {engine!r}")
        for client in self.ids:
            if not 0 <= client < 2**63:
                raise DataError(f"ids must be in 0..2**63 - 1, got {client}")
        self._id = torch.tensor(self.ids, dtype=torch.int64).to(device)
        self._few = np.array(self.ids, np.uint64) if self._id.device.type == "cpu" else None
        self._draw = 0
        self._kept: dict[tuple[object, ...], Tensor] | None = None

    @property
    def device(self) -> torch.device:
        """Where the numbers are made for."""
        return self._id.device

    def _uniforms(self, numbers: int) -> Tensor:
        """Draw float64 numbers [K, numbers] in the open interval (0, 1)."""
        if self.engine == "generators":
            rows = torch.empty(len(self.ids), numbers, dtype=torch.float64)
            for row, generator in zip(rows, self._generators(), strict=True):
                torch.rand(numbers, generator=generator, out=row)
            return rows.clamp_min_(2.0**-54).to(self._id.device)
        draw, self._draw = self._draw, self._draw + 1
        if self._few is not None and len(self.ids) * numbers <= _FEW:
            blocks = (numbers + 1) // 2
            left, right = _few_words(self._few, blocks, draw, (self.seed, self.round))
            joined = ((left << _TWENTY) | (right >> _TWELVE)).transpose(1, 2, 0).reshape(len(self.ids), 2 * blocks)
            return torch.from_numpy((joined[:, :numbers] + 0.5) * 2.0**-52)
        block = torch.arange((numbers + 1) // 2, device=self._id.device)
        ids = self._id.unsqueeze(-1)
        counter = (block, ids & _WORD, ids >> 32, torch.full_like(block, draw))
        words = philox(counter, (self.seed, self.round))
        high = torch.stack((words[0], words[2]), -1).flatten(-2)[:, :numbers]
        low = torch.stack((words[1], words[3]), -1).flatten(-2)[:, :numbers]
        return ((high << 20) | (low >> 12)).double().add_(0.5).mul_(2.0**-52)

    def _generators(self) -> Iterator[torch.Generator]:
        """Seed a generator per client for the next draw."""
        draw, self._draw = self._draw, self._draw + 1
        for client in self.ids:
            yield generator_from_text(f"{self.seed}/{self.round}/{client}/{draw}")

    def uniform(self, like: Tensor) -> Tensor:
        """Draw uniforms in (0, 1).

        Args:
            like: gives shape [K, *], dtype and device; a dimension that may be padded must come right after K.

        Returns:
            [K, *].
        """
        numbers = like[0].numel() if like.shape[0] else 0
        uniform = self._uniforms(numbers).view(like.shape).to(like.dtype)
        return uniform.clamp_(max=1 - torch.finfo(like.dtype).eps / 2)  # rounding to float32 may reach 1

    def normal(self, like: Tensor) -> Tensor:
        """Draw standard normals by inversion, so that the float32 draw is the float64 one rounded.

        Args:
            like: gives shape [K, *], dtype and device; a dimension that may be padded must come right after K.

        Returns:
            [K, *].
        """
        numbers = like[0].numel() if like.shape[0] else 0
        normal: Tensor = torch.special.ndtri(self._uniforms(numbers))
        return normal.view(like.shape).to(like.dtype)

    def normal_by_row(self, like: Tensor) -> Tensor:
        """Draw standard normals for every row of every client, where speed counts.

        The engine "generators" draws in the dtype of `like` by torch's own generator, some rows at a time, so that a
        longer draw begins with a shorter one; "philox" by inversion, as `normal`.

        Args:
            like: gives shape [K, N, *], dtype and device; N may be padded.

        Returns:
            [K, N, *].
        """
        if self.engine == "philox":
            return self.normal(like)
        k, rows, *shape = like.shape
        drawn = torch.empty(k, rows + -rows % _BLOCK, *shape, dtype=like.dtype)
        for own, generator in zip(drawn, self._generators(), strict=True):
            for block in own.split(_BLOCK):
                block.normal_(generator=generator)
        return drawn[:, :rows].to(like.device)

    def weights(self, like: Tensor, kind: Kind = "normal") -> Tensor:
        """Draw for something that is as large for every client whatever its rows: here speed counts.

        The engine "generators" draws in the dtype of `like` by torch's own generator, which is several times as fast as
        inversion; a longer draw does not begin with a shorter one.

        Args:
            like: gives shape [K, *], dtype and device; no dimension may be padded.
            kind: standard normals, uniforms u in (0, 1), or logistics ln u - ln(1 - u).

        Returns:
            [K, *].
        """
        if self._kept is None:
            return self._weights(like, kind)
        place = (self._draw, kind, like.shape, like.dtype)
        if (known := self._kept.get(place)) is not None:
            self._draw += 1
            return known
        for old in [*self._kept][: len(self._kept) + 1 - _KEPT]:
            del self._kept[old]
        result = self._kept[place] = self._weights(like, kind)
        return result

    def _weights(self, like: Tensor, kind: Kind) -> Tensor:
        several = len(self.ids) > 1 and self.ids[0] == self.ids[-1]  # of clients' own streams no two are alike
        if not several or len(set(self.ids)) > 1:
            return self._made(like, kind)
        one, self._draw = self.select([0]), self._draw + 1
        return one._made(like[:1], kind).expand(like.shape)

    def _made(self, like: Tensor, kind: Kind) -> Tensor:
        if kind == "logistic":
            return torch.logit(self._made(like, "uniform"))
        if self.engine == "philox":
            return self.normal(like) if kind == "normal" else self.uniform(like)
        drawn = torch.empty(len(self.ids), like[0].numel(), dtype=like.dtype)
        for row, generator in zip(drawn, self._generators(), strict=True):
            row.normal_(generator=generator) if kind == "normal" else row.uniform_(generator=generator)
        if kind == "uniform":
            drawn.clamp_(torch.finfo(like.dtype).tiny, 1 - torch.finfo(like.dtype).eps / 2)
        return drawn.view(like.shape).to(like.device)

    def copy(self) -> Noise:
        """Copy the streams: the copy yields the same next draws."""
        twin = Noise(self.seed, self.round, self.ids, self._id.device, self.engine)
        twin._draw, twin._kept = self._draw, self._kept
        return twin

    def select(self, positions: Sequence[int]) -> Noise:
        """Streams of some of the clients, with the same next draws; a client may be repeated.

        Args:
            positions: of the wanted clients.

        Returns:
            As many streams; these are left as they are.
        """
        ids = [self.ids[i] for i in positions]
        subset = Noise(self.seed, self.round, ids, self._id.device, self.engine)
        subset._draw = self._draw
        return subset

    def common(self) -> Noise:
        """Give streams that are alike for all clients, so that a draw of weights is made once.

        What a client draws depends neither on who it is nor on who else is there; clients' draws depend on each other.

        Returns:
            The streams, at the same draw; these are left as they are.
        """
        alike = Noise(self.seed, self.round, (0,) * len(self.ids), self._id.device, self.engine)
        alike._draw = self._draw
        return alike

    def fork(self, place: int = 0) -> Noise:
        """Give streams of the same clients that will not meet these: for work that some clients of a call have alone.

        What those draw moves nobody's later numbers. A fork is not to be forked again.

        Args:
            place: of several forks, below 2**11, which do not meet within 2**20 draws each.

        Returns:
            The streams.
        """
        twin = self.copy()
        twin._draw += (1 << 31) + (place << 20)
        return twin

    def shared(self) -> Noise:
        """Copy the streams for readers that go on in step, each of its own `copy`: what they draw alike is made once.

        Of draws for weights, which nobody is to change in place.

        Returns:
            Streams with the same next draws, whose copies find the last draws of each other.
        """
        twin = self.copy()
        twin._kept = {}
        return twin

    def rows(self, mask: Tensor, n: int) -> Tensor:
        """Draw a minibatch of rows per client without replacement.

        Args:
            mask: [K, N] bool, True on real rows.
            n: rows wanted; clients with fewer get all of theirs, then padding from its beginning.

        Returns:
            Row positions [K, min(n, N)], int64: those of the smallest of one uniform a row, in the order of these.

        Example:
            >>> import torch
            >>> from pacbayes_fl.noise import Noise
            >>> mask = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
            >>> rows = Noise(seed=0, round=1, ids=(7, 8)).rows(mask, 3)
            >>> rows.shape, sorted(rows[1, :2].tolist())  # both rows that the second client has come first
            (torch.Size([2, 3]), [0, 1])
        """
        width = mask.shape[1]
        padding = torch.arange(2, width + 2, dtype=torch.float64, device=mask.device)  # no two keys alike
        keys = torch.where(mask, self._uniforms(width), padding)
        return keys.topk(min(n, width), dim=1, largest=False).indices
