"""What is installed with the package, and under which licences: a CycloneDX list and `docs/dependencies.md`.

python scripts/sbom.py [--out sbom.json] [--check]

Reads the metadata of the installed packages and nothing else: no network. `--check` writes nothing, and fails where the page
lacks a package that an extra needs, or where a licence is one that would bind users of the library.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
EXTRAS = ("data", "cli", "report", "convex", "text", "bench")
"""What users may install; tools of development are left out."""
BINDING = re.compile(r"\bA?GPL|not stated|proprietary", re.IGNORECASE)
"""Licences whose terms would extend to a program that imports the package, and those that nobody knows."""
READ = {"locate": "MIT"}
"""Packages whose metadata does not name their licence: what their LICENSE file says."""
SPDX = {
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD-3-clause": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "MIT license": "MIT",
    "MPL 2.0": "MPL-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "PSF": "PSF-2.0",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "LGPL": "LGPL-2.1-or-later",
}
"""The words of older metadata, as SPDX identifiers."""


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    version: str
    licence: str
    """An SPDX expression where the metadata has one or a known name for one, else the metadata's own words."""
    direct: bool
    """Whether `pyproject.toml` names it."""
    extras: tuple[str, ...]
    """The extras that need it, in the end; "core": every installation does."""


def packages() -> list[Package]:
    """Everything that an installation with all extras brings, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        "core": project["dependencies"],
        **{name: project["optional-dependencies"][name] for name in EXTRAS},
    }
    needed: dict[str, set[str]] = {}
    direct = set()
    for extra, lines in wanted.items():
        for line in lines:
            requirement = Requirement(line)
            direct.add(canonicalize_name(requirement.name))
            for name in _closure(requirement, set()):
                needed.setdefault(name, set()).add(extra)
    found = []
    for name, extras in sorted(needed.items()):
        package = metadata.distribution(name)
        used = ("core",) if "core" in extras else tuple(sorted(extras))
        version = package.version.split("+")[0]
        found.append(Package(package.metadata["Name"], version, _licence(package), name in direct, used))
    return found


def _closure(requirement: Requirement, seen: set[str]) -> set[str]:
    """The package and all that it needs here, as far as it is installed."""
    name = canonicalize_name(requirement.name)
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return seen
    if name in seen:
        return seen
    seen.add(name)
    for line in package.requires or ():
        inner = Requirement(line)
        markers = [{"extra": extra} for extra in ("", *requirement.extras)]
        if inner.marker is None or any(inner.marker.evaluate(each) for each in markers):
            _closure(inner, seen)
    return seen


def _licence(package: metadata.Distribution) -> str:
    """What the metadata says: an expression, the classifiers, or the free field."""
    fields = package.metadata
    if known := READ.get(canonicalize_name(fields["Name"])):
        return known
    if expression := fields.get("License-Expression"):
        return str(expression)
    classifiers = [
        line.split(" :: ")[-1]
        for line in fields.get_all("Classifier") or ()
        if line.startswith("License :: ")
    ]
    named = [SPDX.get(each, each) for each in classifiers if each != "OSI Approved"]
    if named:
        return " OR ".join(dict.fromkeys(named))
    free = str(fields.get("License") or "").strip()
    first = free.splitlines()[0].strip() if free else ""
    return SPDX.get(first, first[:60]) or "not stated"


def bill(found: list[Package]) -> dict[str, Any]:
    """A CycloneDX 1.5 list of the packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    content = json.dumps([[each.name, each.version] for each in found])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"expression": project["license"]}],
            }
        },
        "components": [
            {
                "type": "library",
                "name": each.name,
                "version": each.version,
                "purl": f"pkg:pypi/{canonicalize_name(each.name)}@{each.version}",
                "scope": "required" if each.extras == ("core",) else "optional",
                "licenses": [{"license": {"name": each.licence}}],
            }
            for each in found
        ],
    }


def table(found: list[Package]) -> str:
    """The packages as a table in Markdown."""
    lines = ["| package | version | licence | needed by |", "|---|---|---|---|"]
    for each in found:
        name = f"**{each.name}**" if each.direct else each.name
        lines.append(f"| {name} | {each.version} | {each.licence} | {', '.join(each.extras)} |")
    return "\n".join(lines)


def faults(found: list[Package], page: str) -> Iterator[str]:
    """Licences that must not be there, and packages that the page does not have."""
    for each in found:
        if BINDING.search(each.licence):
            yield f"{each.name}: its licence ({each.licence}) would extend to users of the library, or is not known"
        if each.direct and f"| **{each.name}** |" not in page:
            yield f"{each.name}: docs/dependencies.md does not list it; run `make sbom`"


def main() -> int:
    """Write the list and the page, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "sbom.json")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    found, page = packages(), PAGE.read_text()
    if not options.check:
        options.out.write_text(json.dumps(bill(found), indent=1) + "\n")
        head, _, rest = page.partition("<!-- begin -->")
        tail = rest.partition("<!-- end -->")[2]
        page = f"{head}<!-- begin -->\n\n{table(found)}\n\n<!-- end -->{tail}"
        PAGE.write_text(page)
        print(f"{len(found)} packages in {options.out} and {PAGE}")
    wrong = [*faults(found, page)]
    print("\n".join(wrong), end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
