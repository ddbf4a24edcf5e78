"""What every page has in common: its style, its script, and the rule that nothing is loaded."""

import base64
import functools
import hashlib
import importlib.resources

import jinja2

_DOCTYPE = "<!doctype html>"


@functools.cache
def text(name: str) -> str:
    """One of the files that pages are made of."""
    return importlib.resources.files("surestep.report").joinpath(name).read_text()


def policy() -> str:
    """Nothing is loaded from anywhere; the page's own style and script, by their hashes."""

    def hashed(name: str) -> str:
        digest = hashlib.sha256(text(name).encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    return (
        f"default-src 'none'; img-src data:; style-src {hashed('page.css')}; "
        f"script-src {hashed('page.js')}; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def template(name: str) -> jinja2.Template:
    """A page's template; the macros before the page of a run are there for all pages."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    macros = text("page.html").partition(_DOCTYPE)[0]
    return environment.from_string(macros + _DOCTYPE + text(name).partition(_DOCTYPE)[2])
