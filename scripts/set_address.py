"""Write the public address of the repository where a forge, a package index and a reader of the README look for it.

    python -m scripts.set_address https://forge.example/owner/pixpack

Run once when the repository gets an address, and again when it moves: [project.urls] of pyproject.toml, badges of README.md,
CITATION.cff, mkdocs.yml, the conda recipe and the links beside the issue forms are replaced. Prints what changed.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from urllib.parse import quote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
_BADGES = re.compile(r"(?m)^<!-- badges -->.*\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", type=_address, help="https:// URL of the repository, without .git")
    options = parser.parse_args()
    changed = set_address(ROOT, options.address)
    print(f"{options.address}: changed {', '.join(changed)}" if changed else f"{options.address}: no file changes")


def set_address(root: Path, address: str) -> list[str]:
    """Write an address into the files below root that show one; returns the paths of those that changed."""
    edits = {
        "pyproject.toml": _with_urls,
        "README.md": lambda text, address: _with_badges(text, address, root),
        "CITATION.cff": lambda text, address: _with_line(text, "repository-code", f'"{address}"', after="license"),
        "mkdocs.yml": lambda text, address: _with_line(text, "repo_url", address, after="site_description"),
        "conda/recipe.yaml": lambda text, address: _with_line(text, "  homepage", address, after="  license_file"),
        ".github/ISSUE_TEMPLATE/config.yml": _with_contact,
    }
    changed = []
    for name, edit in edits.items():
        old = (root / name).read_text(encoding="utf-8")
        new = edit(old, address)
        if new != old:
            (root / name).write_text(new, encoding="utf-8")
            changed.append(name)
    return changed


def _with_urls(text: str, address: str) -> str:
    """Put [project.urls] before [project.scripts], in place of an earlier one."""
    urls = {
        "Homepage": address,
        "Documentation": f"{address}/blob/main/docs/index.md",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    section = "\n".join(["[project.urls]", *(f'{name} = "{url}"' for name, url in urls.items()), "", ""])
    text = re.sub(r"(?ms)^\[project\.urls\]\n.*?(?=^\[)", "", text)
    return text.replace("[project.scripts]", f"{section}[project.scripts]", 1)


def _with_badges(text: str, address: str, root: Path) -> str:
    """Put a line of badges below the title, in place of an earlier one: the state of CI, Python versions, license."""
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    license = re.findall(r'(?m)^license = "(.+)"$', project)[0]
    badges = [
        _badge("CI", f"{address}/actions/workflows/ci.yml/badge.svg", f"{address}/actions/workflows/ci.yml"),
        _badge("Python", _drawn("python", " | ".join(versions)), "pyproject.toml"),
        _badge("License", _drawn("license", license), "LICENSE"),
    ]
    title, _, rest = _BADGES.sub("", text, count=1).partition("\n\n")
    return f"{title}\n\n<!-- badges --> {' '.join(badges)}\n\n{rest}"


def _badge(name: str, picture: str, link: str) -> str:
    return f"[![{name}]({picture})]({link})"


def _drawn(label: str, value: str) -> str:
    """Return the picture of a badge without a state; in its path a hyphen is written twice."""
    return f"https://img.shields.io/badge/{label}-{quote(value.replace('-', '--'))}-blue"


def _with_line(text: str, key: str, value: str, *, after: str) -> str:
    """Put `key: value` behind the line of another key, in place of an earlier one."""
    text = re.sub(rf"(?m)^{key}: .*\n", "", text)
    return re.sub(rf"(?m)^({after}: .*\n)", lambda found: f"{found[1]}{key}: {value}\n", text, count=1)


def _with_contact(text: str, address: str) -> str:
    """Link the documentation and the way to report a vulnerability beside the issue forms."""
    links = [
        ("Documentation", f"{address}/blob/main/docs/index.md", "How-to guides, reference and troubleshooting."),
        ("Vulnerability", f"{address}/security/advisories/new", "Report it in private; see SECURITY.md."),
    ]
    lines = [f"  - name: {name}\n    url: {url}\n    about: {about}\n" for name, url, about in links]
    return text.partition("contact_links:")[0] + "contact_links:\n" + "".join(lines)


def _address(text: str) -> str:
    parts = urlsplit(text)
    if (
        parts.scheme != "https"
        or not parts.hostname
        or len(parts.path.strip("/").split("/")) != 2
        or text.endswith(".git")
    ):
        raise argparse.ArgumentTypeError(f"{text!r}: expected https://HOST/OWNER/REPOSITORY, without .git")
    return text.rstrip("/")


if __name__ == "__main__":
    main()
