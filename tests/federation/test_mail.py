"""Requests to several clients of a node in one message, and who may answer for whom."""

from __future__ import annotations

from collections.abc import ItemsView
from typing import Any

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import frames, mail
from pacbayes_fl.federation.mail import MailTransport
from pacbayes_fl.federation.messages import Refused
from tests.remote import NAMES, REPLIES, ROUND

REQUESTS = {name: ROUND.request(name) for name in NAMES[:2]}
ANSWERS = [(NAMES[0], REPLIES[NAMES[0]]), (NAMES[1], Refused("no")), (NAMES[2], REPLIES[NAMES[2]])]
NO_SIZE = b'{"config": {"answers": []}, "arrays": [["a", "float64", [Infinity], "numpy.ndarray", 0]]}'
ODD = (
    len(NO_SIZE).to_bytes(8, "big") + NO_SIZE,
    frames.encode({"answers": [{"client": ["a"], "refused": "no"}]}, {}),
    frames.encode({"answers": [{"client": "a", "refused": [[]]}]}, {}),
)


def test_requests_share_their_parameters() -> None:
    data = mail.pack_requests([*REQUESTS.values()])
    assert mail.unpack_requests(frames.decode(data)) == [*REQUESTS.values()]
    alone = mail.pack_requests([REQUESTS[NAMES[0]]])
    assert len(data) - len(alone) < 500  # the method's description is of all of them too
    other = REQUESTS[NAMES[1]]._replace(config={**REQUESTS[NAMES[1]].config, "method": "another"})
    differ = [REQUESTS[NAMES[0]], other]
    assert mail.unpack_requests(frames.decode(mail.pack_requests(differ))) == differ


def test_answers_come_back_one_by_one() -> None:
    assert mail.unpack_answers(mail.pack_answers(ANSWERS)) == ANSWERS
    for bad in (
        frames.encode({}, {}),
        frames.encode({"answers": [1]}, {}),
        b"",
        frames.encode({"refused": "no"}, {}),
        *ODD,
    ):
        with pytest.raises(DeployError):
            mail.unpack_answers(bad)


def test_a_node_of_many_clients_costs_one_look_at_each_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays of all clients were gone through for each of them: seconds of 2000 clients."""
    looks = list[int]()

    class Counted(dict[str, Any]):
        def items(self) -> ItemsView[str, Any]:
            looks.append(len(self))
            return super().items()

    data = mail.pack_answers(ANSWERS * 5)
    config, arrays = frames.decode(data)
    monkeypatch.setattr(frames, "decode", lambda _: frames.Frame(config, Counted(arrays)))
    assert mail.unpack_answers(data) == ANSWERS * 5
    assert looks == [len(arrays)]


def test_a_node_answers_for_its_own_clients() -> None:
    post = mail.InMemory({1: lambda data: mail.pack_answers(ANSWERS[:1]), 2: lambda data: mail.pack_answers(ANSWERS)})
    result = list(MailTransport(post, dict(zip(NAMES, (1, 2, 3), strict=False)), 1.0).exchange(REQUESTS))
    assert [name for name, _ in result] == [NAMES[0], f"node 2 for {NAMES[0]!r}", NAMES[1], f"node 2 for {NAMES[2]!r}"]


@pytest.mark.parametrize("noise", [b"noise", ODD[0]], ids=["noise", "infinite"])
def test_noise_instead_of_answers_is_a_refusal_of_the_clients_that_were_asked(noise: bytes) -> None:
    post = mail.InMemory({1: lambda data: noise, 2: lambda data: frames.encode({"refused": "its disk is full"}, {})})
    result = dict(MailTransport(post, dict(zip(NAMES, (1, 2), strict=False)), 1.0).exchange(REQUESTS))
    assert all(isinstance(answer, Refused) for answer in result.values())
    assert "no message" in str(result[NAMES[0]]) and result[NAMES[1]] == Refused("its disk is full")
