"""What the site does that Markdown does not: formulas become MathML, and links out of docs/ become
text.

Browsers draw MathML themselves, so that formulas need no script and no network. Only the part of
TeX that docstrings and pages use is known; anything else stops the build with a sentence."""

from __future__ import annotations

import html
import posixpath
import re
from typing import Any

from mkdocs.exceptions import PluginError

GREEK = {
    **{
        "alpha": "α",
        "beta": "β",
        "gamma": "γ",
        "delta": "δ",
        "epsilon": "ϵ",
        "varepsilon": "ε",
        "lambda": "λ",
        "mu": "μ",
    },
    **{"phi": "ϕ", "pi": "π", "rho": "ρ", "sigma": "σ", "theta": "θ"},
}
WORDS = ("max", "min", "log", "exp")
SIGNS = {
    **{
        "sum": "∑",
        "cap": "∩",
        "cup": "∪",
        "in": "∈",
        "le": "≤",
        "ge": "≥",
        "times": "×",
        "cdot": "·",
        "pm": "±",
        "to": "→",
    },
    **{"infty": "∞", "approx": "≈", "ne": "≠", "lvert": "|", "rvert": "|", "dots": "…"},
}
SPACES = {"quad": "1em", "qquad": "2em", ",": "0.17em", ";": "0.28em", " ": "0.25em"}
MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository that are not pages lead nowhere on the site: only their text
    is kept.
    """
    folder = posixpath.dirname(page.file.src_uri)

    def text_of(found: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join(folder, found[2])).startswith("..")
        return found[1] if outside else found[0]

    return LINK.sub(text_of, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Draw the formulas that arithmatex has marked."""
    try:
        return MARKED.sub(_drawn, html)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from None


def _drawn(found: re.Match[str]) -> str:
    return mathml(html.unescape(found[2]), block=found[1] == "div")


def mathml(tex: str, *, block: bool = False) -> str:
    r"""A formula of TeX as MathML, with its source for programs that read it aloud.

    >>> mathml(r"\frac{1}{K} s_y^2").partition(">")[2]
    '<mrow><mfrac><mn>1</mn><mi>K</mi></mfrac><msubsup><mi>s</mi><mi>y</mi><mn>2</mn></msubsup></mrow></math>'
    """
    formula = Formula(tex)
    drawn = formula.row()
    if formula.rest:
        raise ValueError(f"a brace too many in the formula {tex!r}")
    shown = ' display="block"' if block else ""
    return f'<math{shown} alttext="{html.escape(" ".join(tex.split()))}">{drawn}</math>'


class Formula:
    """Reads a formula from left to right, a token at a time."""

    def __init__(self, tex: str) -> None:
        self.tex = tex
        self.rest = re.findall(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\s+|.", tex, re.S)

    def row(self) -> str:
        """Everything up to the end or a closing brace."""
        parts = []
        while self.rest and self.rest[0] != "}":
            if self.rest[0].isspace():
                self.rest.pop(0)
            else:
                parts.append(self.scripted())
        return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"

    def scripted(self) -> str:
        """A part with what stands below and above it."""
        large = self.rest[0] == r"\sum"
        base, below, above = self.part(), "", ""
        while self.rest and self.rest[0] in "_^":
            if self.rest.pop(0) == "_":
                below = self.part()
            else:
                above = self.part()
        kind = ("under" if large else "sub") * bool(below) + ("over" if large else "sup") * bool(
            above
        )
        return f"<m{kind}>{base}{below}{above}</m{kind}>" if kind else base

    def part(self) -> str:
        """A letter, a number, a sign, a group or a command with what it takes."""
        while self.rest and self.rest[0].isspace():
            self.rest.pop(0)
        if not self.rest:
            raise ValueError(f"something is missing at the end of the formula {self.tex!r}")
        token = self.rest.pop(0)
        if token == "{":
            inner = self.row()
            self.close()
            return inner
        if token.startswith("\\"):
            return self.command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        return (
            f"<mi>{token}</mi>"
            if token.isalpha()
            else _sign({"-": "−", "'": "′", "*": "∗"}.get(token, token))
        )

    def command(self, name: str) -> str:
        """A command without its backslash."""
        if name in ("frac", "sqrt"):
            parts = [self.part() for _ in range(2 if name == "frac" else 1)]
            return f"<m{name}>{''.join(parts)}</m{name}>"
        if name in ("text", "mathrm"):
            return self.words("mtext" if name == "text" else "mi")
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"/>'
        if name in GREEK:
            return f"<mi>{GREEK[name]}</mi>"
        if name in WORDS:
            return f'<mo form="prefix" lspace="0.1em" rspace="0.1em">{name}</mo>'
        if name in SIGNS or name in ("{", "}", "|", "%"):
            return _sign(SIGNS.get(name, name))
        raise ValueError(
            f"the formula {self.tex!r} has \\{name}, which docs/site_hooks.py does not know; add it"
            " there"
        )

    def words(self, kind: str) -> str:
        """Upright letters: what stands between braces, as it is."""
        if not self.rest or self.rest.pop(0) != "{":
            raise ValueError(f"a brace is missing in the formula {self.tex!r}")
        end = self.rest.index("}") if "}" in self.rest else len(self.rest)
        text, self.rest = "".join(self.rest[:end]), self.rest[end:]
        self.close()
        style = ' mathvariant="normal"' if kind == "mi" else ""
        return f"<{kind}{style}>{html.escape(text, quote=False)}</{kind}>"

    def close(self) -> None:
        """A closing brace must come now."""
        if not self.rest or self.rest.pop(0) != "}":
            raise ValueError(f"a brace is missing in the formula {self.tex!r}")


def _sign(text: str) -> str:
    """Brackets as tall as letters: formulas here are flat. Bars without the air that operators
    have.
    """
    how = ' stretchy="false"' if text in "()[]{}|" else ""
    how += ' lspace="0" rspace="0"' if text == "|" else ""
    return f"<mo{how}>{html.escape(text, quote=False)}</mo>"
