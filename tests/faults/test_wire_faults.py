"""Bad replies over a network (faults 3, 4, 21, 22 and 23): each is refused by name, and costs its own client alone."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pacbayes_fl import tensors
from pacbayes_fl.federation import arrays, engine, federation_state, messages, private, remote_client, wire
from pacbayes_fl.federation.messages import Reply
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.privacy.mechanisms import Cohorts
from pacbayes_fl.results.rounds import append_round, read_rounds
from tests.laws.cases import assert_close, bits, federation, from_recipe
from tests.private import HUGE, Free
from tests.remote import network, player

METHOD = from_recipe(METHODS["pfedbayes"], 1)
BATCH = federation(1)
PLAN = FederationPlan(rounds=9, seed=3)
NAMES = BATCH.names
LIAR, OTHER = NAMES[1], NAMES[2]
STATE = federation_state.start(METHOD, BATCH, PLAN)
EXPECTED = wire.expected_update(METHOD, STATE.server, BATCH)


def opened(number: int = 9, run: str = "run", server: Any = STATE.server, **more: Any) -> wire.Round:
    return wire.open_round(METHOD, server, PLAN, run, number, messages.members(BATCH), EXPECTED, **more)


def answer(now: wire.Round, k: int) -> Reply:
    return remote_client.handle_train(METHOD, now.request(NAMES[k]), None, BATCH.select(torch.tensor([k])).trim())[0]


NINE = opened()
HONEST = {name: answer(NINE, k) for k, name in enumerate(NAMES)}
REST = wire.collect(NINE, [item for item in HONEST.items() if item[0] != LIAR])
SEVEN = opened(7)
MOVED = opened(server=tensors.tree_map(lambda leaf: leaf + 1e-12, STATE.server))


def saying(**changes: Any) -> Reply:
    kept = {**HONEST[LIAR].config, **changes}
    return Reply({key: value for key, value in kept.items() if value is not None}, HONEST[LIAR].arrays)


def sending(**changes: Any) -> Reply:
    sent = {**HONEST[LIAR].arrays, **changes}
    return Reply(HONEST[LIAR].config, {name: value for name, value in sent.items() if value is not None})


def leaf(name: str) -> torch.Tensor:
    return tensors.leaves(arrays.unpack(EXPECTED, HONEST[LIAR].arrays))[name]


def nested(one: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says torch
        return torch.nested.nested_tensor([one[0]])


class Failing:
    """What a transport has not read to its end."""

    @property
    def data(self) -> bytes:
        raise OSError("lost\x1b" * 10**5)


class Unlisted(dict[str, Any]):
    """The same of all arrays together."""

    def items(self) -> Any:
        raise OSError("lost\x1b" * 10**5)


BAD: dict[str, tuple[Any, str]] = {
    "a round that is over": (answer(SEVEN, 1), "round 7 arrived in round 9"),
    "a round to come": (answer(opened(10), 1), "round 10 arrived in round 9"),
    "another run": (answer(opened(run="old"), 1), "a reply of run 'old' arrived in run 'run'"),
    "other parameters": (answer(MOVED, 1), "it started from other parameters than those that were sent"),
    "another client's reply": (HONEST[OTHER], f"a reply of client '{OTHER}' under another name"),
    "another client's name": (saying(client=OTHER), f"a reply of client '{OTHER}' under another name"),
    "a name that paints": (saying(client="\x1b[2J" + "x" * 10**6), r"a reply of client '\\x1b\[2Jx+.* under"),
    "no run": (saying(run=None), "'run' must be str, got nothing"),
    "no hash": (saying(parameters=None), "'parameters' must be str, got nothing"),
    "a round in words": (saying(round="9"), "'round' must be int, got '9'"),
    "a round that is true": (saying(round=True), "'round' must be int, got True"),
    "a round that is huge": (saying(round=10**400), "round 10+.* arrived in round 9"),
    "no reply but nothing": (None, "what came has no config or no arrays, but is NoneType"),
    "an error": (RuntimeError("died"), "what came has no config or no arrays, but is RuntimeError"),
    "values without arrays": (Reply(HONEST[LIAR].config, None), "no config or no arrays"),  # type: ignore[arg-type]
    "no leaf": (sending(**dict.fromkeys(HONEST[LIAR].arrays)), "leaves missing"),
    "a leaf missing": (sending(weight=None), r"leaves missing: \['weight'\]"),
    "a leaf too many": (sending(more=torch.zeros(1)), "not known: 'more'"),
    "names without end": (sending(**{f"x{i}": torch.zeros(1) for i in range(10**4)}), "bytes, and at most"),
    "a long name": (sending(**{"x" * 10**6: torch.zeros(0)}), "bytes, and at most"),
    "numbers without end": (sending(more=torch.empty(2**50, device="meta")), "bytes, and at most"),
    "bytes without end": (sending(weight=HONEST[LIAR].arrays["weight"]._replace(data=bytes(10**6))), "bytes, and at"),  # type: ignore[union-attr]
    "NaN": (sending(weight=leaf("weight") * torch.nan), "leaf 'weight' is not finite"),
    "infinity": (sending(weight=leaf("weight") * torch.inf), "leaf 'weight' is not finite"),
    "1e300": (sending(**{"w.loc": leaf("w.loc") + 1e300}), "leaf 'w.loc' is not finite, or too large to be squared"),
    "float32": (sending(**{"w.loc": leaf("w.loc").float()}), r"leaf 'w.loc' must be .* torch.float64, got .*float32"),
    "whole numbers": (sending(weight=leaf("weight").long()), "leaf 'weight' must be .* got .* torch.int64"),
    "complex numbers": (
        sending(weight=leaf("weight").to(torch.complex64)),
        "leaf 'weight' must be .* got .* torch.complex64",
    ),
    "a size that would broadcast": (sending(**{"w.loc": leaf("w.loc")[:, :1]}), r"'w.loc' must be .*, got \[1, 1\]"),
    "no client dimension": (sending(weight=leaf("weight")[0]), r"'weight' must be \[1\] .*, got \[\]"),
    "two clients": (sending(weight=leaf("weight").repeat(2)), r"'weight' must be \[1\] .*, got \[2\]"),
    "sparse": (sending(**{"w.loc": leaf("w.loc").to_sparse()}), "dense on the CPU, got sparse_coo"),
    "on no device": (sending(**{"w.loc": leaf("w.loc").to("meta")}), "dense on the CPU, got strided on meta"),
    "nested": (sending(**{"w.loc": nested(leaf("w.loc"))}), "'w.loc' must be .*, dense on the CPU, got nested"),
    "an array that fails when it is read": (sending(weight=Failing()), "cannot be read: OSError: 'lost"),
    "arrays that fail when they are listed": (Reply(HONEST[LIAR].config, Unlisted()), "cannot be read: OSError: 'lost"),
    "a NumPy array": (sending(weight=np.ones(1)), "'weight' is no array in bytes and no tensor, but ndarray"),
    "a list": (sending(weight=[1.0]), "'weight' is no array in bytes and no tensor, but list"),
    "text": (sending(weight="1.0"), "'weight' is no array in bytes and no tensor, but str"),
}


@pytest.mark.parametrize(("reply", "text"), BAD.values(), ids=BAD.keys())
def test_a_bad_reply_is_refused_by_name_and_the_others_count(reply: Any, text: str) -> None:
    result = wire.collect(NINE, {**HONEST, LIAR: reply}.items())
    assert result.present == tuple(name for name in NAMES if name != LIAR)
    assert bits(result.update) == bits(REST.update)
    assert list(result.reasons) == [LIAR] and re.search(text, result.reasons[LIAR]), result.reasons
    assert len(result.reasons[LIAR]) < 400 and result.reasons[LIAR].isprintable()


@pytest.mark.law
@pytest.mark.parametrize(("reply", "text"), BAD.values(), ids=BAD.keys())
def test_a_client_whose_good_reply_comes_too_counts_by_it_and_the_bad_one_is_told(reply: Any, text: str) -> None:
    for order in ([(LIAR, reply), *HONEST.items()], [*HONEST.items(), (LIAR, reply)]):
        result = wire.collect(NINE, order)
        assert result.present == NAMES and list(result.reasons) == [LIAR]
        assert bits(result.update) == bits(wire.collect(NINE, HONEST.items()).update)


def with_(reply: Reply) -> list[tuple[str, Reply]]:
    return [*{**HONEST, LIAR: reply}.items()]


def test_the_same_update_twice_counts_once() -> None:
    twice = wire.collect(NINE, [*HONEST.items(), *HONEST.items()])
    assert twice.present == NAMES and not twice.reasons
    assert bits(twice.update) == bits(wire.collect(NINE, HONEST.items()).update)


def test_a_second_update_that_differs_is_told_and_the_first_counts() -> None:
    other = sending(**{"w.loc": leaf("w.loc") + 1})
    for first, second in ((HONEST[LIAR], other), (other, HONEST[LIAR])):
        result = wire.collect(NINE, [*with_(first), (LIAR, second)])
        assert dict(result.reasons) == {LIAR: "a second reply that differs from the first, which counts"}
        assert bits(result.update) == bits(wire.collect(NINE, with_(first)).update)


def test_strangers_are_refused_and_however_many_they_are_few_are_listed() -> None:
    strange = [(f"\x1b{i}", HONEST[LIAR]) for i in range(1000)]
    result = wire.collect(NINE, [*strange, *HONEST.items()])
    assert result.present == NAMES and len(result.reasons) == 17
    assert result.reasons["'\\x1b3'"] == "not registered"
    assert result.reasons["..."] == "984 more replies of clients that are not registered"


def test_who_has_no_name_is_a_stranger() -> None:
    nameless: list[Any] = [(["a"], HONEST[LIAR]), (None, HONEST[LIAR]), ({}, None)]
    result = wire.collect(NINE, [*nameless, *HONEST.items()])
    assert result.present == NAMES and dict(result.reasons) == dict.fromkeys(("['a']", "None", "{}"), "not registered")


def test_who_is_absent_and_why_stands_in_the_line_of_the_round(tmp_path: Any) -> None:
    late = answer(SEVEN, 1)
    lost = network(METHOD, BATCH, lambda name, t, reply: {LIAR: late, OTHER: None}.get(name, reply))
    remote = player(METHOD, BATCH, PLAN, lost)
    record, _ = next(engine.play(remote, STATE))
    append_round(tmp_path, record)
    (read,) = read_rounds(tmp_path)
    assert (read.clients, read.dropped) == (3, (LIAR, OTHER))
    assert dict(read.reasons) == {LIAR: "round 7 arrived in round 1", OTHER: "no reply"}


def test_sizes_are_judged_before_a_number_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the bytes of an update: no array is opened, and no hash is taken."""
    asked: list[Any] = []
    unpack: Callable[..., Any] = arrays.unpack
    monkeypatch.setattr(arrays, "unpack", lambda *args: asked.append(unpack(*args)) or asked[-1])  # type: ignore[func-returns-value]
    huge = HONEST[LIAR].arrays["w.loc"]._replace(data=bytes(10 * NINE.budget))  # type: ignore[union-attr]
    result = wire.collect(NINE, {LIAR: sending(**{"w.loc": huge}), NAMES[0]: HONEST[NAMES[0]]}.items())
    assert result.present == (NAMES[0],) and len(asked) == 1


def hidden(present: tuple[str, ...]) -> Any:
    """Record and state of a round in which some reply, through a mechanism that hides nothing."""
    aggregator = private.open_private(METHOD, STATE.server, BATCH, PLAN, HUGE, Cohorts(len(NAMES)), Free(), 5)
    lost = network(METHOD, BATCH, lambda name, t, reply: reply if name in present else None)
    return next(engine.play(player(METHOD, BATCH, PLAN, lost, aggregator), STATE))


@pytest.mark.law
@pytest.mark.parametrize("present", [NAMES, NAMES[2:], ()], ids=len)
def test_private_rounds_divide_by_a_number_that_does_not_depend_on_who_replied(present: Any) -> None:
    """Step of the server: the sum of what came over all five clients."""
    record, state = hidden(present)
    now = opened(1)
    whole = wire.collect(now, [(name, answer(now, k)) for k, name in enumerate(NAMES)]).update.w
    there = torch.tensor([name in present for name in NAMES])
    step = tensors.tree_map(lambda leaf, w: (leaf[there] - w).sum(0) / len(NAMES), whole, STATE.server.w)
    assert_close(state.server.w, tensors.tree_map(torch.add, STATE.server.w, step), 1e-9)
    assert (record.clients, record.dropped, dict(record.reasons), record.steps) == (5, (), {}, None)


def test_records_of_private_rounds_are_the_same_whoever_replied() -> None:
    records = [hidden(some)[0] for some in (NAMES, NAMES[:1])]
    assert records[0].values.keys() == records[1].values.keys()
    assert replace(records[0], values={}) == replace(records[1], values={})


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(HONEST[LIAR].arrays)),
    position=st.integers(0, 10**4),
    byte=st.integers(0, 255),
    field=st.sampled_from(["data", "shape", "dtype", "stype"]),
    config=st.dictionaries(
        st.sampled_from(["run", "round", "client", "parameters"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats() | st.binary(max_size=4),
        max_size=1,
    ),
)
def test_a_reply_that_was_changed_anywhere_counts_as_finite_numbers_or_is_refused(
    name: str, position: int, byte: int, field: str, config: dict[str, Any]
) -> None:
    array: Any = HONEST[LIAR].arrays[name]
    data = bytearray(array.data)
    data[position % len(data)] = byte
    change = {"data": bytes(data), "shape": (byte, 1), "dtype": f"float{byte}", "stype": f"{byte}"}[field]
    reply = Reply({**HONEST[LIAR].config, **config}, {**HONEST[LIAR].arrays, name: array._replace(**{field: change})})
    result = wire.collect(NINE, {**HONEST, LIAR: reply}.items())
    assert set(NAMES) - {LIAR} <= set(result.present)
    assert all(leaf.isfinite().all() for leaf in tensors.leaves(result.update).values())
