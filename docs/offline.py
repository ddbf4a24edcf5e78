"""After a build: no page may load anything from another host."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_OWN_LINKS = {"canonical", "next", "prev"}  # links that name a page and load nothing


class _Loads(HTMLParser):
    """Collects the addresses that a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag would make a browser fetch."""
        given = dict(attrs)
        address = given.get(_LOADS.get(tag, "")) or ""
        named_only = tag == "link" and given.get("rel") in _OWN_LINKS
        if not named_only and address.startswith(("http:", "https:", "//")):
            self.found.append(address)


def loaded_from_elsewhere(site: Path) -> list[str]:
    """`page: address` for everything in a site's pages and styles that comes from other hosts."""
    found = []
    for page in sorted(site.rglob("*.html")):
        parser = _Loads()
        parser.feed(page.read_text())
        found += [f"{page.relative_to(site)}: {address}" for address in parser.found]
    for style in sorted(site.rglob("*.css")):
        text = style.read_text()
        for start in ("url(http", "url('http", 'url("http', "url(//", '@import "http'):
            if start in text:
                found.append(f"{style.relative_to(site)}: {start}...")
    return found


def on_post_build(config: Any, **_: Any) -> None:
    """MkDocs calls this when all pages are written."""
    found = loaded_from_elsewhere(Path(config.site_dir))
    if found:
        raise SystemExit("the site loads from other hosts:\n" + "\n".join(found))
