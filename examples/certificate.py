"""A certificate from a script: of numbers of your own, and of every client of a run."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pacbayes_fl as fl
from pacbayes_fl.bounds import MonteCarlo, Premises, Provenance, seeger

# from numbers alone, without a federation
premises = Premises(prior=Provenance("split"), independent=True)  # the prior came from other rows; rows are independent
draws = MonteCarlo(1000, delta=0.01)  # the risk was estimated by 1000 draws from the posterior
certificate = seeger(risk=0.03, kl=500.0, n=30_000, delta=0.035, premises=premises, monte_carlo=draws)
print(certificate)  # risk at most 0.09957 with probability at least 0.965 ...
print(certificate.value, certificate.recompute(), certificate.delta_split, certificate.valid)

seen = Premises(Provenance("saw the rows"), independent=True)
print(seeger(0.03, 500.0, 30_000, 0.035, seen))  # no number, its reason

# of a run: half of each client's rows is reserved for the bound before anything is trained
folder = Path(TemporaryDirectory().name)
sets = ["federation.rounds=20", "method.particles=3", "report.certify.scheme=split"]
fl.run(fl.Study.from_toml("polynomial", sets), folder)
table = fl.certify(fl.open_run(folder), fl.Request(bound="seeger", delta=0.05, tried=1))
bounds = sorted(client.bound for client in table.clients)
print(f"{table.bound}: {len(bounds)} clients, risk at most {bounds[0]:.3f} to {bounds[-1]:.3f}")
