import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.methods.baselines.persistence import Persistence
from pacbayes_fl.methods.baselines.ridge import LocalRidge
from pacbayes_fl.methods.baselines.vanilla_gp import VanillaGP
from pacbayes_fl.noise import Noise


def test_a_round_of_clients_that_work_alone_changes_nothing() -> None:
    batch = ClientBatch.pad([(torch.ones(m, 2).double(), torch.ones(m).double()) for m in (2, 3)], ["a", "b"])
    method = Persistence(("a",), "a")
    server = method.init_server(torch.Generator().manual_seed(0))
    update, state = method.client(method.broadcast(server), Nothing(), batch, Noise(0, 1, batch.ids))
    assert update.weight.tolist() == [1.0, 1.0] and state == Nothing()
    assert method.server(server, update, 2) is server and method.broadcast(server) is server


def test_who_works_alone() -> None:
    assert all(issubclass(method, LocalMethod) for method in (LocalRidge, Persistence, VanillaGP))
