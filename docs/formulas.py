"""Formulas of docstrings, which are written as plain text, as TeX: the same symbols in the same order, only typeset.

`ln Z = sum_i s_i^2 / sqrt(2 pi n) <= L^` has Greek letters by name, `_` and `^` for what is below and above, `L^` for a
hat and words for what is said. Slashes stay: no reading of the author's is put in place of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_GREEK: Final = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega".split()
)
_SIGNS: Final = {
    "<=": r"\le ",
    ">=": r"\ge ",
    "!=": r"\ne ",
    "<-": r"\leftarrow ",
    "->": r"\to ",
    "+=": r"\mathrel{+}= ",
    "||": r"\Vert ",
    "...": r"\dots ",
    "~": r"\sim ",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "\\": r"\setminus ",
    "'": "'",
}
_WORDS: Final = {
    "sum": r"\sum ",
    "prod": r"\prod ",
    "grad": r"\nabla ",
    "inf": r"\infty ",
    "infinity": r"\infty ",
    "eps": r"\epsilon ",
    "in": r"\in ",
}
_FUNCTIONS: Final = frozenset(
    "ln exp log max min diag tr det sup KL kl erf sign softplus sigmoid clip cov var Var Cov Beta Bin Ber GP IG argmin "
    "argmax median mean rows std".split()
)
_KNOWN: Final = _GREEK | {*_WORDS} | _FUNCTIONS
_TOKEN: Final = re.compile(
    r"`[^`]*`|[A-Za-z]+(?![a-z])|\d+(?:\.\d+)?(?:e-?\d+)?|\.\d+|<=|>=|!=|<-|->|\+=|\|\||\.\.\.|\s+|."
)
_ENGLISH: Final = frozenset(
    "a an and at by each every for from has have if is it its of on one or over than that the then to under where "
    "which with as not no when but so also are all be only such".split()
)


def is_formula(lines: list[str]) -> bool:
    """Tell a formula from a sentence.

    Args:
        lines: of one paragraph.

    Returns:
        Whether it states a relation, ends without a full stop and has more symbols than words.
    """
    text = " ".join(lines).strip()
    if text.startswith(">>>"):
        return False
    if not re.search(r"(?<![\w\"'])(?:=|<=|>=|~|<-|\+=)(?= )|\w\(.*\) = ", text) or text.endswith((".", ":", ";")):
        return False
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"`[^`]*`", "", text))
    english = sum(word in _ENGLISH or (word.islower() and len(word) > 6 and word not in _GREEK) for word in words)
    return bool(english <= 0.35 * max(len(re.findall(r"\w+|[^\w\s]", text)), 1) and english <= 9)


def to_tex(text: str) -> str:
    """Typeset a formula.

    Args:
        text: of one line, such as "L <= L^ + sqrt(B / (2 n))"; what is set off by spaces at the end in brackets is a
            source, and stays text.

    Returns:
        TeX.
    """
    formula, source = text.strip(), ""
    if set_off := re.fullmatch(r"(.*?\S)\s{2,}(\([^()]*\))", formula):
        formula, source = set_off[1], rf"\qquad\text{{{_plain(set_off[2])}}}"
    return _sequence(list(_tokens(formula)), set())[0].strip() + source


def _tokens(text: str) -> Iterator[str]:
    for token in _TOKEN.findall(text.strip()):
        yield " " if token.isspace() else token


def _sequence(tokens: list[str], until: set[str]) -> tuple[str, int]:
    """Typeset tokens up to a closing one; how many were read stands beside the TeX."""
    result: list[str] = []
    at = 0
    while at < len(tokens) and tokens[at] not in until:
        piece, used = _atom(tokens, at)
        at += used
        while at < len(tokens) and tokens[at] in ("_", "^"):
            mark = tokens[at]
            nothing_follows = at + 1 == len(tokens) or tokens[at + 1] in " ),]/"
            is_hat = at + 1 < len(tokens) and (tokens[at + 1] == "_" or (piece == "L" and tokens[at + 1] == "("))
            if mark == "^" and (nothing_follows or is_hat):
                piece, at = rf"\hat{{{piece.strip()}}}", at + 1
                continue
            if nothing_follows:
                piece, at = piece + r"\_", at + 1
                continue
            script, used = _script(tokens, at + 1)
            at += 1 + used
            while at + 1 < len(tokens) and tokens[at] == mark and tokens[at + 1] not in " ),]/":  # of the script
                inner, used = _script(tokens, at + 1)
                script, at = f"{script}{mark}{{{inner}}}", at + 1 + used
            piece = f"{piece.rstrip()}{mark}{{{script}}}"
        result.append(piece)
    return _joined(result), at


def _joined(pieces: list[str]) -> str:
    """Join the pieces; two scripts of one kind on one letter are given braces."""
    return re.sub(r"(?<=\})\^\{([^{}]*)\}\^", r"^{\1}{}^", "".join(pieces))


def _script(tokens: list[str], at: int) -> tuple[str, int]:
    """Typeset what stands above or below: a group, or a sign, a letter and its subscripts' commas."""
    if tokens[at] in ("(", "{"):
        close = ")" if tokens[at] == "(" else "}"
        inner, used = _sequence(tokens[at + 1 :], {close})
        return inner.strip(), used + 2
    used = 1 if tokens[at] in "+-" and at + 1 < len(tokens) else 0
    letters = tokens[at + used].isalpha() and len(tokens[at + used]) < 4 and tokens[at + used] not in _KNOWN
    piece, more = (tokens[at + used], 1) if letters else _atom(tokens, at + used)
    sign = tokens[at] if used else ""
    used += more
    while at + used + 1 < len(tokens) and tokens[at + used] == "," and tokens[at + used + 1] not in " ":
        more_piece, more = _atom(tokens, at + used + 1)
        piece, used = f"{piece},{more_piece}", used + 1 + more
    return f"{sign}{piece.strip()}", used


def _atom(tokens: list[str], at: int) -> tuple[str, int]:
    """Typeset one token, or a root with what stands under it."""
    token = tokens[at]
    if token == " ":
        return (r"\ " if _is_text(tokens, at + 1) else " "), 1
    if token.startswith("`") and len(token) > 1:
        return rf"\texttt{{{_plain(token[1:-1])}}}", 1
    if token == "sqrt":
        return _root(tokens, at)
    if token == "(":
        inner, used = _sequence(tokens[at + 1 :], {")"})
        return (f"({inner})", used + 2) if at + 1 + used < len(tokens) else ("(", 1)
    if token == "|" and tokens[at - 1 : at] == tokens[at + 1 : at + 2] == [" "] and tokens.count("|") % 2:
        return r"\mid ", 1
    if token == "*":
        return (r"\cdot " if tokens[at + 1 : at + 2] == [" "] else "^{*}"), 1
    if token in _SIGNS:
        return _SIGNS[token], 1
    if token in _GREEK:
        return rf"\{token} ", 1
    if token in _WORDS and not (token == "in" and _is_text(tokens, at - 2)):
        return _WORDS[token], 1
    if _is_text(tokens, at):
        return _text(tokens, at)
    if token in _FUNCTIONS:
        return rf"\mathrm{{{token}}}" + (r"\," if tokens[at + 1 : at + 2] == [" "] else ""), 1
    return token.replace("_", r"\_"), 1


def _root(tokens: list[str], at: int) -> tuple[str, int]:
    """Typeset a root: of a group, or of the next symbol."""
    if at + 1 < len(tokens) and tokens[at + 1] == "(":
        inner, used = _sequence(tokens[at + 2 :], {")"})
        return rf"\sqrt{{{inner.strip()}}}", used + 3
    if at + 2 < len(tokens) and tokens[at + 1] == " ":
        inner, used = _atom(tokens, at + 2)
        return rf"\sqrt{{{inner.strip()}}}", used + 2
    return r"\surd ", 1


def _is_text(tokens: list[str], at: int) -> bool:
    """Whether a token is a word of a sentence, and no symbol."""
    if not 0 <= at < len(tokens):
        return False
    token = tokens[at]
    if token in _GREEK or token in _FUNCTIONS or token in _WORDS or token == "sqrt" or not token[0].isalpha():
        return False
    if token == "a":
        return at + 2 < len(tokens) and tokens[at + 1] == " " and _is_text(tokens, at + 2)
    return len(token) > 2 or (len(token) > 1 and token in _ENGLISH)


def _text(tokens: list[str], at: int) -> tuple[str, int]:
    """Typeset words that follow each other."""
    words, end = [tokens[at]], at + 1
    while end + 1 < len(tokens) and tokens[end] == " " and (tokens[end + 1] == "in" or _is_text(tokens, end + 1)):
        words += [" ", tokens[end + 1]]
        end += 2
    return rf"\text{{{''.join(words)}}}" + (r"\," if tokens[end : end + 1] == [" "] else ""), end - at


def _plain(code: str) -> str:
    return re.sub(r"([_&%#${}])", r"\\\1", code)
