"""Certificates on a page: n, premises, the trivial bound; bounds are never rounded down."""

from __future__ import annotations

import math

from pacbayes_fl.pages.certificates import certificates
from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun


def made(reasons: dict[str, list[str]] | None = None, clients: int = 3) -> CertifiedRun:
    lines = [
        CertifiedClient(f"<b>h{k}", "existing", 50 + k, 0.1, 2.0, 0.40001 + 0.2 * k, 0.15, 20, trivial=0.7)
        for k in range(clients)
    ]
    premises = {"independent": True, "prior": {"source": "split", "rows": None}, "tried": 2}
    record = {"premises": premises, "valid": True}
    average = {"existing": {"valid": True, "value": 0.52989, "theorem": "Seeger", "delta": 0.05}}
    labels = {"rows": {"existing": "rows that training has not seen"}, "assumes": ["rows are independent"]}
    return CertifiedRun(
        *("study", "pac-pfl", 0, "seeger", "Seeger's bound", "1 - exp(-(error / 1)^2)", 0.0, 1.0, 0.05),
        tuple(lines),
        reasons or {"existing": []},
        average,
        {"existing": record},
        labels,
    )


def test_a_table_says_n_premises_and_the_trivial_bound() -> None:
    section = certificates([made()])
    assert section is not None
    text = to_html(section)
    for words in (
        *("Seeger&#x27;s bound" if "&#x27;" in text else "Seeger's bound", "0.4001", "(n 50)", "split", "0.5299"),
        *("rows that training has not seen", "rows are independent", "trivial bound", "vacuous", "2 of 3 bounds"),
    ):
        assert words in text, words
    assert "&lt;b&gt;h0" in text and "<b>h0" not in text and "None" not in text and "^2" not in text


def test_groups_without_certificates_say_why_and_stale_tables_are_named() -> None:
    section = certificates([made({"new": ["rows <not> independent"]}, 0)], ["table x is stale"])
    assert section is not None
    text = to_html(section)
    assert "new clients have no certificate: rows &lt;not&gt; independent" in text and "table x is stale" in text
    assert certificates([]) is None


def test_bounds_without_numbers_are_drawn_no_worse() -> None:
    table = made()
    line = CertifiedClient("h", "existing", 1, math.nan, math.inf, math.inf, math.nan, 0)
    odd = CertifiedRun(**{**vars(table), "clients": (*table.clients, line)})
    section = certificates([odd])
    assert section is not None and "beyond the axis" in to_html(section)
