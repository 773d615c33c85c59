"""Your own bound: a function, its formula and a record; it is tested in a world where the truth is known."""

from pacbayes_fl.bounds import BOUNDS, Bound, Premises, Provenance, check_bound
from pacbayes_fl.bounds.client import budget, in_units, of_risk, unit_risk


def pinsker(risk, kl, n, delta, premises, *, monte_carlo=None):
    """Bound the risk by Pinsker's inequality (McAllester 1999).

    L <= L^ + R sqrt((KL + ln(xi(n) / delta)) / (2 n))
    """
    return of_risk("Pinsker", _pinsker, risk, kl, n, delta, premises, monte_carlo)


def _pinsker(terms):  # risk, n, ... [] or [K]; the parts sum to the bound
    return {"bound": in_units(unit_risk(terms) + (budget(terms) / (2 * terms["n"])).sqrt(), terms)}


PINSKER = Bound(
    name="pinsker", function=pinsker, formula=_pinsker, needs=("risk", "kl", "n"), poolable=True, world="fair coins"
)

check_bound(PINSKER)  # it covers the truth, never rises, has slopes, pays for estimates, ...
premises = Premises(prior=Provenance("split"), independent=True)
for name, bound in {"pinsker": PINSKER, "seeger": BOUNDS["seeger"]}.items():
    print(name, bound.function(0.03, 500.0, 30_000, 0.025, premises).value.item())
# a run is certified with it by `fl.certify(run, fl.Request(bound=PINSKER))` or `certify --bound mine.py:PINSKER`
