"""Builds the prompts that the shipped drafting head is trained on: `python benchmarks/head_prompts.py --out FILE`.

Only the *questions* come from here; the target model writes the answers itself. They are of the kinds people ask:
summaries, questions about given passages, translations, facts, word problems, and open instructions of eight kinds
with a second turn. Real text comes from the packages that `head_sources.py` lists with their licences, phrasings and
word lists (`head_words.py`) are our own. Output: JSON lines {"source", "prompt"} or {"source", "turns"}, shuffled.
The same seed and archives give the same file.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import head_sources
import head_words as words
from head_sources import Article, Term

Prompt = dict[str, Any]
MOST_CHARACTERS = 2300  # of a prompt; English prose has over four characters a token, so this stays below 600 tokens
# [in 1903,] somebody DID something; somebody or something, but no pronoun, is BEING something
DID = re.compile(r"(?:[^,]{4,40}, )?(?:[A-Z][\w' -]{1,30}?|he|she|it) (\w+ed|won|wrote|led|began) ([^.,;]+)")
BEING = re.compile(
    r"(?!(?:It|He|She|This|They|There|These|That|In|As)\b)((?:The |An? )?[\w' -]{3,40}?) (was|is|were|are) ([^.,;]+)"
)
COUNTS = {"summary": 3000, "context": 3000, "translation": 2500, "fact": 2000, "open": 3000}


def passage(rng: random.Random, article: Article, least: int, most: int) -> str:
    """Neighbouring paragraphs of an article `least` to `most` words (one sentence at the least)."""
    start = rng.randrange(len(article.paragraphs))
    wanted = rng.randint(least, most)
    kept: list[str] = []
    for paragraph in article.paragraphs[start:]:
        line: list[str] = []
        for sentence in head_sources.sentences(paragraph):
            before = [*kept, *line]
            if before and sum(len(s.split()) for s in before) + len(sentence.split()) > most:
                break
            line.append(sentence)
        kept.append(" ".join(line))
        if sum(len(s.split()) for s in kept) >= wanted or not line:
            break
    return rng.choice(["\n", "\n\n", " "]).join(filter(None, kept))


def laid_out(rng: random.Random, instruction: str, text: str, labels: list[str]) -> str:
    """An instruction before or after a text, which has a label, quotation marks, or nothing around it."""
    style = rng.randrange(6)
    if style == 0:
        text = f"{rng.choice(labels)}: {text}"
    elif style == 1:
        text = f"{rng.choice(labels)}:\n{text}"
    elif style == 2 and '"' not in text:
        text = f'"{text}"'
    gap = rng.choice(["\n", "\n\n"])
    return f"{text}{gap}{instruction}" if rng.random() < 0.35 else f"{instruction}{gap}{text}"


def question_about(rng: random.Random, title: str, text: str) -> str:
    """A question that the text may well answer: about a year, a name in it, or a sentence's subject."""
    questions = [f"What does the text say about {title}?", f"Why is {title} important?"]
    for year in sorted(set(re.findall(r"\b(?:in|In) (1[0-9]{3}|20[0-2][0-9])\b", text))):
        questions += [f"What happened in {year}?", f"what happened to {title} in {year}"]
    for name in sorted(set(re.findall(r"(?<=[a-z,] )[A-Z][a-zà-ÿ]{2,}(?: [A-Z][a-zà-ÿ]+)+", text))):
        questions += [f"Who or what is {name}?", f"How is {name} connected with {title}?"]
    for sentence in head_sources.sentences(text):
        did = DID.match(sentence)
        if did and len(did[2].split()) > 2:  # "Curie discovered two elements": who discovered two elements?
            asker = rng.choice(["Who", "who", "Who or what"])
            questions += [f"{asker} {did[1]} {' '.join(did[2].split()[:14])}{'?' if asker[0] == 'W' else ''}"] * 2
        being = BEING.match(sentence)
        if being:
            subject = being[1][0].lower() + being[1][1:] if re.match(r"The |An? ", being[1]) else being[1]
            questions += [f"What {being[2]} {subject}?", f"Why {being[2]} {subject} {' '.join(being[3].split()[:8])}?"]
        if len(sentence.split()) <= 16:
            start = sentence if re.match(r"[A-Z]\w+ [A-Z]|I ", sentence) else sentence[0].lower() + sentence[1:]
            questions.append(f"Is it true that {start.rstrip('.!?')}?")
    return rng.choice(questions[2:] if len(questions) > 2 else questions)


def summaries(rng: random.Random, wiki: list[Article], speeches: list[Article]) -> Iterator[Prompt]:
    while True:
        kind, pool = ("encyclopaedia", wiki) if rng.random() < 0.68 else ("speech", speeches)
        [article] = rng.choices(pool, [len(a.paragraphs) for a in pool])
        text = passage(rng, article, 110, 320)
        if len(text.split()) < 100:
            continue
        instruction = rng.choice(words.SUMMARISE).format(noun=rng.choice(words.NOUNS[kind]))
        yield {"source": f"summary-{kind}", "prompt": laid_out(rng, instruction, text, words.LABELS[kind])}


def contexts(rng: random.Random, wiki: list[Article]) -> Iterator[Prompt]:
    weights = [len(a.paragraphs) for a in wiki]
    while True:
        [article] = rng.choices(wiki, weights)
        count = rng.randint(2, 4)
        pieces = [passage(rng, article, 30, 240 // count)]
        question = question_about(rng, article.title, pieces[0])
        for _ in range(count - 1):  # half of the others are of another article, as a search engine's would be
            [other] = [article] if rng.random() < 0.5 else rng.choices(wiki, weights)
            pieces.append(passage(rng, other, 30, 240 // count))
        rng.shuffle(pieces)
        mark = rng.choice(["", "", "[{}] ", "Passage {}: ", "Document {}:\n", "- ", "{}. ", "Title {}\n"])
        body = "\n\n".join(mark.format(i) + piece.replace("\n", " ") for i, piece in enumerate(pieces, 1))
        instruction = rng.choice(words.CONTEXT)
        asked = rng.choice(
            ["Question: {}", "Q: {}", "{}", "Question: {}\nAnswer:", "My question: {}", "Now answer: {}"]
        )
        asked = asked.format(question)
        order = rng.random()
        parts = [instruction, body, asked] if order < 0.6 else [asked, instruction, body]
        yield {"source": "context", "prompt": "\n\n".join(parts if order < 0.9 else [body, f"{instruction} {asked}"])}


def translations(
    rng: random.Random, book: dict[str, list[str]], quotes: list[str], wiki: list[Article]
) -> Iterator[Prompt]:
    while True:
        source, target = rng.choices(
            [("German", "English"), ("French", "English"), ("Spanish", "English"), ("English", "German")],
            [76, 7, 7, 6],
        )[0]
        if source == "English":
            target = rng.choice(["German", "German", "French", "Spanish"])
            text = rng.choice(head_sources.sentences(rng.choice(rng.choice(wiki).paragraphs)))
        else:
            text = rng.choice(quotes if source == "German" and rng.random() < 0.7 else book[source])
        if not 6 <= len(text.split()) <= 60:
            continue
        instruction = rng.choice(words.TRANSLATE).format(source=source, target=target)
        article = "an " if target == "English" else "a "
        instruction = re.sub(r"\ban? (?=[A-Z])", article, instruction)
        yield {
            "source": f"translation-{source}",
            "prompt": laid_out(rng, instruction, text, [source, "Text", "Sentence"]),
        }


def term_question(rng: random.Random, term: Term) -> str:
    """A question for a name, or for the name that fits a gloss."""
    name, gloss = term.name, re.sub(r"\s*\([^)]*\)", "", term.gloss).strip()
    if term.kind == 118:
        forms = ["Who was {n}?", "who is {n}", "What is {n} known for?", "When did {n} live?", "Where was {n} born?"]
    elif term.kind in (115, 117):
        forms = [
            "Where is {n}?",
            "What is {n}?",
            "where is {n} located",
            "What is {n} known for?",
            "Which country is {n} in?",
        ]
    elif term.kind > 100:
        forms = ["What is {n}?", "what was {n}", "When was {n}?", "Tell me about {n}.", "Why is {n} important?"]
    else:
        forms = [
            "What is {n}?",
            "what does {n} mean",
            "Define {n}.",
            "What is {n} used for?",
            "Where can one find {n}?",
        ]
    forms = forms * 2 + [
        "Which word or name fits this description: {g}?",
        "What do you call this: {g}?",
        "Name the following: {g}.",
    ]
    return rng.choice(forms).format(n=name, g=gloss)


def facts(rng: random.Random, terms: list[Term]) -> Iterator[Prompt]:
    named, common = [t for t in terms if t.kind > 100], [t for t in terms if t.kind < 100]
    while True:
        which = rng.random()
        if which < 0.45:
            question = term_question(rng, rng.choice(named))
        elif which < 0.6:
            question = term_question(rng, rng.choice(common))
        elif which < 0.8:
            question = rng.choice(words.COUNTRY_QUESTIONS).format(c=rng.choice(words.COUNTRIES))
        else:
            t, u = rng.sample(words.TOPICS, 2)
            question = rng.choice(words.SUBJECT_QUESTIONS).format(t=t, u=u)
        yield {"source": "fact", "prompt": question}


def filled(rng: random.Random, pattern: str) -> str:
    """A pattern with its one-letter holes filled: a-b-c names, t-u-v topics, n-m-k numbers, p people, c-d places."""
    names, topics, places = rng.sample(words.NAMES, 3), rng.sample(words.TOPICS, 3), rng.sample(words.COUNTRIES, 2)
    holes: dict[str, object] = dict(zip("tuv", topics, strict=True))
    holes |= {
        "n": rng.randint(2, 12),
        "m": rng.randint(13, 59),
        "k": rng.randint(60, 999),
        "p": rng.choice(words.PEOPLE),
    }
    holes |= {"a": names[0], "b": names[1], "x": rng.choice(["tall", "clever", "polite", "quiet"])}
    # "{c}" is a place beside topics and a name beside other names
    holes |= {"c": names[2] if "{b}" in pattern else places[0], "d": places[1]}
    return pattern.format(**holes)


def open_first(rng: random.Random, kind: str, wiki: list[Article]) -> str:
    """The first turn of an open instruction of one of the eight kinds."""
    topic = rng.choice(words.TOPICS)
    if kind == "writing":
        form, limit = rng.choice(words.FORMS), rng.choice(words.LIMITS)
        ask = rng.choice(["Write {} about {}.", "Compose {} on {}.", "Please write {} about {}.", "I need {} about {}.",
                          "Can you write {} that deals with {}?", "Draft {} for a magazine issue on {}."])  # fmt: skip
        people = rng.choice(["", "", f" It is for {rng.choice(words.PEOPLE)}."])
        return f"{ask.format(form, topic)}{people} {limit}".strip()
    if kind == "roleplay":
        ask = rng.choice(["You are {}. Tell me about {}.", "Pretend to be {} and explain {} to me.",
                          "Act as {}. I will ask you about {}. Begin by introducing yourself.",
                          "Imagine you are {}. How do you feel about {}?",
                          "Play the role of {} who has strong opinions on {}.",
                          "Speak like {}. What advice do you have on {}?"])  # fmt: skip
        return f"{ask.format(rng.choice(words.ROLES), topic)} {rng.choice(words.LIMITS[:9])}".strip()
    if kind == "coding":
        ask = rng.choice(["Write a {} program that {}.", "Write a function in {} that {}.",
                          "In {}, write code that {}.", "How would you write a {} function that {}?",
                          "Show me an example in {} that {}."])  # fmt: skip
        limit = rng.choice(["", "", "", " Explain it briefly.", " Include an example call.", " Keep it short."])
        return ask.format(rng.choice(words.LANGUAGES), rng.choice(words.CODING)) + limit
    if kind == "extraction":
        text = passage(rng, rng.choice(wiki), 40, 140)
        return laid_out(rng, rng.choice(words.EXTRACT), text, words.LABELS["encyclopaedia"])
    patterns = {
        "reasoning": words.REASONING,
        "maths": words.MATHS,
        "science": words.SCIENCE,
        "humanities": words.HUMANITIES,
    }
    return filled(rng, rng.choice(patterns[kind]))


def open_tasks(rng: random.Random, wiki: list[Article]) -> Iterator[Prompt]:
    while True:
        kind = rng.choice(sorted(words.FOLLOW_UPS))
        first = open_first(rng, kind, wiki)
        if rng.random() < 0.6:
            yield {"source": f"open-{kind}", "turns": [first, rng.choice(words.FOLLOW_UPS[kind])]}
        else:
            yield {"source": f"open-{kind}", "prompt": first}


def opening(prompt: Prompt) -> str:
    first = prompt["prompt"] if "prompt" in prompt else prompt["turns"][0]
    assert isinstance(first, str)
    return first


def distinct(stream: Iterator[Prompt], count: int) -> list[Prompt]:
    """The first `count` prompts of a stream that are not too long and not the same words as an earlier one."""
    kept: dict[str, Prompt] = {}
    for tries, prompt in enumerate(stream):
        text = opening(prompt)
        if len(text) <= MOST_CHARACTERS:
            kept.setdefault(" ".join(re.findall(r"\w+", text.lower())), prompt)
        if len(kept) == count:
            break
        if tries > 50 * count:
            raise SystemExit(f"Only {len(kept)} of {count} prompts like {text[:60]!r} are distinct: lower its count.")
    return list(kept.values())


def build(cache: Path, train_prompts: Path | None, seed: int) -> list[Prompt]:
    wiki, speeches = head_sources.wikipedia(cache), head_sources.addresses(cache)
    book, quotes, terms = head_sources.handbook(cache), head_sources.quotations(cache), head_sources.wordnet(cache)
    streams: dict[str, Callable[[random.Random], Iterator[Prompt]]] = {
        "summary": lambda rng: summaries(rng, wiki, speeches),
        "context": lambda rng: contexts(rng, wiki),
        "translation": lambda rng: translations(rng, book, quotes, wiki),
        "fact": lambda rng: facts(rng, terms),
        "open": lambda rng: open_tasks(rng, wiki),
    }
    prompts: list[Prompt] = []
    for name, stream in streams.items():  # a generator of its own for each, so that one's count moves no other
        prompts += distinct(stream(random.Random(f"{seed} {name}")), COUNTS[name])
    if train_prompts is not None:
        with train_prompts.open(encoding="utf-8") as lines:
            prompts += [prompt for prompt in map(json.loads, lines) if len(opening(prompt)) <= MOST_CHARACTERS]
    random.Random(seed).shuffle(prompts)
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the prompt file for training a drafting head.")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines file to write")
    parser.add_argument(
        "--train-prompts", type=Path, help="JSON lines of {source, prompt} to mix in (word problems, tasks)"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path("head_prompt_archives"), help="folder for downloaded archives"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    prompts = build(options.cache, options.train_prompts, options.seed)
    options.out.write_text("".join(json.dumps(p, ensure_ascii=False) + "\n" for p in prompts), encoding="utf-8")
    for source, count in sorted(Counter(p["source"] for p in prompts).items()):
        print(f"{count:6d}  {source}")
    print(f"{len(prompts):6d}  prompts, {options.out.stat().st_size / 1e6:.1f} MB, in {options.out}")


if __name__ == "__main__":
    main()
