"""Randomness belongs to the client: published answers, and every kind of independence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.errors import DataError, PacBayesFLError, StudyError
from pacbayes_fl.noise import Engine, Kind, Noise, keys, philox

ENGINES: tuple[Engine, ...] = ("philox", "generators")
IDS = (7, 2**62 + 11, 0, 2**32 + 7, 2**63 - 1)
both = pytest.mark.parametrize("engine", ENGINES)


def like(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(shape, dtype=dtype)


# counter, key and output of Random123's known-answer tests for Philox4x32-10
KNOWN = {
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_philox_gives_the_published_answers(case: str) -> None:
    counter, key, answer = KNOWN[case]
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox((c0, c1, c2, c3), key)) == answer


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 on Python's integers, from the paper."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ key[1],
            first & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_a_number_is_the_stated_function_of_seed_round_client_draw_and_position() -> None:
    noise = Noise(123, 45, IDS)
    draws = [noise.uniform(like(len(IDS), 5)) for _ in range(3)]
    for draw, got in enumerate(draws):
        for k, client in enumerate(IDS):
            for position in range(5):
                counter = [position // 2, client & 0xFFFFFFFF, client >> 32, draw]
                words = plain_philox(counter, [123, 45])[2 * (position % 2) :][:2]
                expected = (((words[0] << 20) | (words[1] >> 12)) + 0.5) * 2.0**-52
                assert float(got[k, position]) == expected


@pytest.mark.parametrize("key", [(0, 0), (2**32 - 1, 2**32 - 1), (5, 9)])
@pytest.mark.parametrize("ids", [IDS, (3,), ()])
def test_few_numbers_are_those_of_the_definition(
    ids: tuple[int, ...], key: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for numbers in (0, 1, 2, 7, 101):
        draws = []
        for few in (1 << 13, -1):
            monkeypatch.setattr("pacbayes_fl.noise._FEW", few)
            draws.append([Noise(*key, ids).fork()._uniforms(numbers), Noise(*key, ids)._uniforms(numbers)])
        for quick, defined in zip(*draws, strict=True):
            assert quick.dtype == defined.dtype and quick.shape == defined.shape == (len(ids), numbers)
            assert torch.equal(quick, defined)


@both
def test_a_client_sees_the_same_numbers_in_any_company_and_order(engine: Engine) -> None:
    together, turned = Noise(3, 9, IDS, engine=engine), Noise(3, 9, IDS[::-1], engine=engine)
    alone = [Noise(3, 9, (i,), engine=engine) for i in IDS]
    for call, shape in ((Noise.normal, (4, 3)), (Noise.uniform, (5,)), (Noise.normal, ())):
        batch, back = call(together, like(len(IDS), *shape)), call(turned, like(len(IDS), *shape))
        assert torch.equal(batch, back.flip(0))
        for k, noise in enumerate(alone):
            assert torch.equal(batch[k], call(noise, like(1, *shape))[0])


@both
def test_padded_rows_move_no_number(engine: Engine) -> None:
    for rows in (1, 4, 7):
        short, long = Noise(3, 9, IDS, engine=engine), Noise(3, 9, IDS, engine=engine)
        for _ in range(2):  # the second draw does not depend on the length of the first
            assert torch.equal(short.normal(like(5, rows, 3)), long.normal(like(5, 9, 3))[:, :rows])
            assert torch.equal(short.uniform(like(5, rows)), long.uniform(like(5, 9))[:, :rows])


@both
def test_a_longer_draw_begins_with_the_shorter_one(engine: Engine) -> None:
    longest = Noise(1, 1, (4,), engine=engine).uniform(like(1, 1001))
    for numbers in (0, 1, 2, 17, 100, 1000):
        assert torch.equal(Noise(1, 1, (4,), engine=engine).uniform(like(1, numbers)), longest[:, :numbers])


@both
def test_float32_is_float64_rounded(engine: Engine) -> None:
    for call in (Noise.normal, Noise.uniform):
        exact = call(Noise(3, 9, IDS, engine=engine), like(5, 400))
        rounded = call(Noise(3, 9, IDS, engine=engine), like(5, 400, dtype=torch.float32))
        assert rounded.dtype == torch.float32 and torch.equal(rounded, exact.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_ends_of_the_interval_are_never_reached(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def words(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
        zeros = 0 * (counter[0] + counter[1])
        return zeros, zeros, zeros + 0xFFFFFFFF, zeros + 0xFFFFFFFF

    monkeypatch.setattr("pacbayes_fl.noise.philox", words)
    monkeypatch.setattr("pacbayes_fl.noise._FEW", -1)
    drawn = Noise(0, 0, (1,)).uniform(like(1, 2, dtype=dtype))[0]
    assert 0 < drawn[0] < drawn[1] < 1
    if dtype == torch.float64:
        assert drawn.tolist() == [2.0**-53, 1 - 2.0**-53]
    assert Noise(0, 0, (1,)).normal(like(1, 2, dtype=dtype)).isfinite().all()


def test_the_generators_never_give_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *size, **options: real(*size, **options).zero_())
    assert (Noise(0, 0, (1, 2), engine="generators").uniform(like(2, 3)) > 0).all()
    assert Noise(0, 0, (1, 2), engine="generators").normal(like(2, 3)).isfinite().all()


@both
def test_uniforms_and_normals_have_their_distribution(engine: Engine) -> None:
    noise, clients, numbers = Noise(11, 2, range(40), engine=engine), 40, 1250
    uniform, normal = noise.uniform(like(clients, numbers)), noise.normal(like(clients, numbers))
    for got, law in ((uniform, stats.uniform), (normal, stats.norm)):
        assert stats.kstest(got.flatten().numpy(), law.cdf).pvalue > 1e-3
        first = stats.kstest(got[:, 0].numpy(), law.cdf)  # across clients at one position too
        assert first.pvalue > 1e-3
    error = 4 / np.sqrt(clients * numbers)
    assert abs(float(normal.mean())) < error and abs(float(normal.var()) - 1) < error * np.sqrt(2)
    assert abs(float((normal**3).mean())) < error * np.sqrt(15) and abs(float((normal**4).mean()) - 3) < error * 10
    for left, right in (
        (normal[:, 1:], normal[:, :-1]),  # neighbours in position
        (normal[1:], normal[:-1]),  # neighbours in id
        (uniform - 0.5, normal),  # neighbours in draw
    ):
        assert abs(float((left * right).mean())) < error


@both
def test_seed_round_client_draw_and_engine_each_change_every_number(engine: Engine) -> None:
    base = Noise(5, 6, (7,), engine=engine)
    drawn = [base.uniform(like(1, 50)), base.uniform(like(1, 50))]
    others = [(6, 6, 7), (5, 7, 7), (6, 5, 7), (5, 6, 8), (5, 6, 7 + 2**32), (7, 6, 5)]
    drawn += [Noise(seed, round, (i,), engine=engine).uniform(like(1, 50)) for seed, round, i in others]
    other_engine: Engine = "generators" if engine == "philox" else "philox"
    drawn.append(Noise(5, 6, (7,), engine=other_engine).uniform(like(1, 50)))
    everything = torch.cat(drawn).flatten()
    assert len(everything.unique()) == len(everything)


@both
def test_the_generator_that_everybody_shares_is_left_alone(engine: Engine) -> None:
    before = torch.get_rng_state()
    noise = Noise(5, 6, IDS, engine=engine)
    noise.normal(like(5, 3)), noise.uniform(like(5, 3)), noise.rows(torch.ones(5, 3, dtype=torch.bool), 2)
    assert torch.equal(torch.get_rng_state(), before)


@both
def test_no_client_and_no_number_are_fine_and_another_k_is_not(engine: Engine) -> None:
    assert Noise(0, 0, (), engine=engine).normal(like(0, 4)).shape == (0, 4)
    assert Noise(0, 0, (1, 2), engine=engine).uniform(like(2, 0, 3)).shape == (2, 0, 3)
    with pytest.raises(RuntimeError):
        Noise(0, 0, (1, 2), engine=engine).normal(like(3, 4))


def ragged(*sizes: int, width: int) -> Tensor:
    return torch.arange(width) < torch.tensor(sizes).unsqueeze(1)


@both
def test_rows_are_distinct_and_the_real_ones_come_first(engine: Engine) -> None:
    sizes = (7, 2, 0, 1, 5)
    mask = ragged(*sizes, width=7)
    for n in (1, 3, 7, 20):
        rows = Noise(2, 3, IDS, engine=engine).rows(mask, n)
        assert rows.shape == (5, min(n, 7)) and rows.dtype == torch.int64
        for k, size in enumerate(sizes):
            real = min(size, n)
            assert len(set(rows[k].tolist())) == min(n, 7)
            assert (rows[k, :real] < size).all() and (rows[k, real:] >= size).all()


@both
def test_rows_equal_those_of_each_client_alone_on_its_own_rows(engine: Engine) -> None:
    sizes = (7, 2, 4, 1, 5)
    together = Noise(2, 3, IDS, engine=engine)
    alone = [Noise(2, 3, (i,), engine=engine) for i in IDS]
    for _ in range(3):
        rows = together.rows(ragged(*sizes, width=9), 3)
        for k, size in enumerate(sizes):
            own = alone[k].rows(ragged(size, width=size), 3)[0]
            assert torch.equal(rows[k, : len(own)], own)
    after = together.normal(like(5, 2))  # and whoever draws next is where the others are
    assert all(torch.equal(after[k], noise.normal(like(1, 2))[0]) for k, noise in enumerate(alone))


@both
def test_every_row_is_drawn_with_the_same_probability(engine: Engine) -> None:
    clients = 20000 if engine == "philox" else 4000
    rows = Noise(8, 1, range(clients), engine=engine).rows(ragged(*[7] * clients, width=10), 3)
    for place, share in ((slice(0, 3), 3 / 7), (slice(0, 1), 1 / 7), (slice(2, 3), 1 / 7)):
        counts = torch.bincount(rows[:, place].flatten(), minlength=10)
        deviation = (counts[:7] / clients - share).abs().max()
        assert deviation < 4.5 * np.sqrt(share * (1 - share) / clients) and counts[7:].sum() == 0
    pairs = (rows[:, 0] * 7 + rows[:, 1]).bincount(minlength=49).view(7, 7)
    assert pairs.diagonal().sum() == 0
    expected = clients / 42
    assert float((pairs - expected).square().sum() / expected) - expected * 7 < stats.chi2.ppf(0.9999, 41)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((-1, 0, (0,)), StudyError, "seed must be in 0..4294967295, got -1"),
        ((2**32, 0, (0,)), StudyError, "seed must be"),
        ((0, -1, (0,)), StudyError, "round must be in 0..4294967295, got -1"),
        ((0, 2**32, (0,)), StudyError, "round must be"),
        ((0, 0, (3, -1)), DataError, "ids must be .* got -1"),
        ((0, 0, (2**63,)), DataError, "ids must be"),
        ((0, 0, (0,), None, "mersenne"), StudyError, "noise must be one of philox, generators, got 'mersenne'"),
    ],
)
def test_what_cannot_be_a_key_is_refused(
    arguments: tuple[int, int, tuple[int, ...]], kind: type[PacBayesFLError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Noise(*arguments)


@pytest.mark.parametrize("arguments", [(1.5, 0, (0,)), (0, 2.0, (0,)), (0, 0, (0.5,)), ("1", 0, (0,))])
def test_a_key_must_be_whole(arguments: tuple[int, int, tuple[int, ...]]) -> None:
    with pytest.raises(TypeError):
        Noise(*arguments)


@both
def test_the_largest_key_works_and_numpy_integers_do(engine: Engine) -> None:
    assert Noise(2**32 - 1, 2**32 - 1, (2**63 - 1,), engine=engine).normal(like(1, 9)).isfinite().all()
    seed, round, ids = np.int32(9), np.int64(1), np.array([3])
    foreign = Noise(seed, round, ids, engine=engine)  # type: ignore[arg-type]
    assert torch.equal(foreign.uniform(like(1, 3)), Noise(9, 1, (3,), engine=engine).uniform(like(1, 3)))


# draws for weights ----------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_for_weights_have_their_distribution(engine: Engine, dtype: torch.dtype) -> None:
    noise = Noise(11, 2, range(40), engine=engine)
    normal, uniform = (
        noise.weights(like(40, 25, 50, dtype=dtype)),
        noise.weights(like(40, 1250, dtype=dtype), "uniform"),
    )
    assert normal.shape == (40, 25, 50) and normal.dtype == uniform.dtype == dtype
    assert ((uniform > 0) & (uniform < 1)).all() and torch.logit(uniform).isfinite().all()
    assert stats.kstest(normal.double().flatten().numpy(), stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(uniform.double().flatten().numpy(), stats.uniform.cdf).pvalue > 1e-3
    error = 4 / np.sqrt(40 * 1250)
    assert abs(float(normal.mean())) < error and abs(float(normal.var()) - 1) < error * np.sqrt(2)
    flat = normal.double().flatten(1)
    for left, right in ((flat[:, 1:], flat[:, :-1]), (flat[1:], flat[:-1]), (uniform.double() - 0.5, flat)):
        assert abs(float((left * right).mean())) < error


@both
def test_draws_for_weights_belong_to_their_client(engine: Engine) -> None:
    together = Noise(3, 9, IDS, engine=engine)
    alone = [Noise(3, 9, (i,), engine=engine) for i in IDS]
    for kind in ("normal", "uniform", "normal"):
        batch = together.weights(like(len(IDS), 4, 3), kind)  # type: ignore[arg-type]
        for k, noise in enumerate(alone):
            assert torch.equal(batch[k], noise.weights(like(1, 4, 3), kind)[0])  # type: ignore[arg-type]
    assert len(torch.cat([together.weights(like(len(IDS), 7)) for _ in range(2)]).unique()) == 2 * 7 * len(IDS)


@both
def test_logistics_are_those_of_the_uniforms(engine: Engine) -> None:
    drawn = Noise(3, 9, IDS, engine=engine).weights(like(5, 40), "logistic")
    assert torch.equal(drawn, torch.logit(Noise(3, 9, IDS, engine=engine).weights(like(5, 40), "uniform")))
    assert stats.kstest(drawn.flatten().numpy(), stats.logistic.cdf).pvalue > 1e-3


@both
@pytest.mark.parametrize("kind", ["normal", "uniform", "logistic"])
def test_common_streams_draw_once_for_all_whoever_is_there(engine: Engine, kind: Kind) -> None:
    noise = Noise(3, 9, IDS, engine=engine)
    noise.normal(like(5, 2))
    common, alone = noise.common(), noise.select([2]).common()
    for one, other in ((common, alone), (common.fork(3), alone.fork(3)), (common.shared().copy(), alone.shared())):
        for _ in range(2):
            drawn, own = one.weights(like(5, 4, 3), kind), other.weights(like(1, 4, 3), kind)
            assert drawn.shape == (5, 4, 3) and drawn.stride()[0] == 0 and torch.equal(drawn, own.expand(5, 4, 3))
    assert not torch.equal(common.weights(like(5, 7), kind), common.weights(like(5, 7), kind))


def test_uniforms_for_weights_never_reach_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (0.0, 1.0):
        monkeypatch.setattr(Tensor, "uniform_", lambda self, value=value, **options: self.fill_(value))
        drawn = Noise(0, 0, (1,), engine="generators").weights(like(1, 3, dtype=torch.float32), "uniform")
        assert ((drawn > 0) & (drawn < 1)).all()


@both
def test_a_copy_draws_what_comes_next_and_a_fork_something_else(engine: Engine) -> None:
    noise = Noise(3, 9, IDS, engine=engine)
    noise.normal(like(5, 2))
    twin, fork = noise.copy(), noise.fork()
    drawn = [stream.weights(like(5, 4)) for stream in (noise, twin, fork, noise, twin, fork)]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[3], drawn[4])
    assert (twin.seed, twin.round, twin.ids, twin.engine) == (3, 9, IDS, engine)
    others = torch.cat([drawn[0], drawn[3], drawn[2], drawn[5]]).flatten()
    assert len(others.unique()) == len(others)
    alone = Noise(3, 9, IDS[1:2], engine=engine)
    alone.normal(like(1, 2))
    assert torch.equal(alone.fork().weights(like(1, 4))[0], drawn[2][1])  # also by client
    several = torch.cat([drawn[2], *(noise.fork(place).weights(like(5, 4)) for place in (1, 2, 2047))]).flatten()
    assert len(several.unique()) == len(several)


@both
def test_some_clients_draw_as_among_all_and_one_taken_twice_draws_the_same_twice(engine: Engine) -> None:
    noise = Noise(3, 9, IDS, engine=engine)
    noise.normal(like(5, 2))
    some = noise.select([4, 1, 1])
    assert some.ids == (IDS[4], IDS[1], IDS[1])
    for _ in range(2):
        assert torch.equal(some.normal(like(3, 4)), noise.normal(like(5, 4))[[4, 1, 1]])


def test_keys_belong_to_seed_round_and_client() -> None:
    ids = list(IDS)
    result = keys(3, 0, ids)
    assert result.dtype == torch.int64 and (result >= 0).all() and result.max() > 2**61
    assert torch.equal(keys(3, 0, ids[::-1]), result.flip(0))
    everything = torch.cat([keys(seed, round, ids) for seed in range(4) for round in range(4)])
    assert len(everything.unique()) == len(everything)
    bits = (keys(0, 1, range(4000)).unsqueeze(-1) >> torch.arange(63)) & 1
    assert ((bits.double().mean(0) - 0.5).abs() < 4.5 * 0.5 / 4000**0.5).all()


@pytest.mark.parametrize("engine", ["philox", "generators"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_of_rows_begin_with_those_of_fewer_rows(engine: Engine, dtype: torch.dtype) -> None:
    long, short = (
        Noise(3, 9, IDS, engine=engine).normal_by_row(torch.empty(len(IDS), rows, 7, dtype=dtype))
        for rows in (300, 129)
    )
    assert torch.equal(long[:, :129], short) and long.dtype == dtype
    assert len(set(long.flatten(0, 1)[:, 0].tolist())) == len(IDS) * 300  # no two rows alike
    assert (
        abs(float(long.mean())) < 4.5 / long.numel() ** 0.5 and abs(float(long.std()) - 1) < 4.5 / long.numel() ** 0.5
    )


@pytest.mark.gpu
def test_philox_gives_a_gpu_the_same_numbers() -> None:
    host, device = Noise(3, 9, IDS), Noise(3, 9, IDS, "cuda")
    assert torch.equal(host.uniform(like(5, 1000)), device.uniform(like(5, 1000).cuda()).cpu())
    torch.testing.assert_close(
        host.normal(like(5, 1000)), device.normal(like(5, 1000).cuda()).cpu(), rtol=0, atol=1e-13
    )
    mask = ragged(7, 2, 4, 1, 5, width=9)
    assert torch.equal(host.rows(mask, 4), device.rows(mask.cuda(), 4).cpu())


def test_streams_say_where_their_numbers_are() -> None:
    assert Noise(1, 0, [4]).device == torch.device("cpu")


@pytest.mark.parametrize("engine", ["philox", "generators"])
@pytest.mark.parametrize("n", [1, 3, 7, 8, 40, 60, 61])
def test_minibatches_are_the_rows_of_the_smallest_uniforms_in_their_order_and_padding_in_its_own(
    engine: Engine, n: int
) -> None:
    """As a stable sort of all rows has it: also where clients have fewer rows than are wanted, or none."""
    sizes = (60, 1, 0, 7, 8, 33, 59)
    mask = torch.arange(60) < torch.tensor(sizes).unsqueeze(1)
    for draw in range(20):
        noise = Noise(draw, 1, range(len(sizes)), engine=engine)
        uniform = noise.copy().uniform(torch.empty(mask.shape, dtype=torch.float64))
        keys = torch.where(mask, uniform, 2.0)
        assert torch.equal(noise.rows(mask, n), torch.argsort(keys, dim=1, stable=True)[:, :n])


@both
def test_streams_that_are_shared_draw_what_each_would_alone(engine: Engine) -> None:
    """Two normals and a uniform a hypothesis, by readers in step, one behind, and one who stops."""

    def read(noise: Noise) -> list[Tensor]:
        size = like(len(IDS), 6)
        return [noise.weights(size), noise.weights(like(len(IDS), 2)), noise.weights(size, "uniform")]

    def equal(some: list[Tensor], others: list[Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))

    begun = Noise(5, 6, IDS, engine=engine)
    begun.normal(like(len(IDS), 3))
    alone = begun.copy()
    expected = [read(alone) for _ in range(3)]
    shared = begun.shared()
    first, second, third = shared.copy(), shared.copy(), shared.copy()
    assert equal(read(first), expected[0]) and equal(read(second), expected[0])
    assert equal(read(first), expected[1]) and equal(read(first), expected[2])
    assert equal(read(second), expected[1]) and equal(read(third), expected[0])
    assert equal([begun.weights(like(len(IDS), 6))], expected[0][:1])
    as_float = first.copy().weights(like(len(IDS), 6, dtype=torch.float32))
    assert as_float.dtype == torch.float32 and torch.equal(
        first.normal(like(len(IDS), 6)), alone.normal(like(len(IDS), 6))
    )
