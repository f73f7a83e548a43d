"""What the docs point to exists."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """What links may put after the `#` of a page: its headings as GitHub spells them, repeated ones numbered."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        numbered = (f"{slug}-{n}" for n in itertools.count(1))
        found.add(slug if slug not in found else next(one for one in numbered if one not in found))
    return found


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        other = page.parent / target if target else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), f"{target}#{anchor}"


@each_page
def test_named_tests_exist(page: Path) -> None:
    for test in re.findall(r"`(tests/[\w/*]+\.py)`", page.read_text(encoding="utf-8")):
        assert list(ROOT.glob(test)), test


def test_architecture_names_every_package() -> None:
    """And no file that is not there."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "outrider"
    folders = {each.parent.relative_to(package) for each in package.glob("*/**/__init__.py")}
    assert {str(each) for each in folders if f"{each.name}/" not in page} == set()
    files = {each.name for each in [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/*.md")]}
    assert set(re.findall(r"\b\w[\w-]*\.(?:py|md)\b", page)) - files == set()
