"""Words of our own to begin with: topics, requests, tasks over a passage, sums, sentences to translate.

Every function draws from the generator it is given and from nothing else.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

FIELDS = (
    "astronomy", "gardening", "medieval history", "personal finance", "marine biology", "cooking", "urban planning",
    "music theory", "software engineering", "public health", "mountaineering", "economics", "photography", "geology",
    "ancient trade", "child development", "renewable energy", "football", "linguistics", "aviation", "law",
    "theatre", "chemistry", "farming", "psychology", "robotics", "weather", "textiles", "philosophy", "elections",
    "railways", "nutrition", "polar exploration", "insects", "architecture", "statistics", "migration", "painting",
    "volcanoes", "schools", "cinema", "genetics", "rivers", "shipping", "video games", "forests", "insurance", "bread",
    "a local council", "a court case", "a storm", "a company merger", "a rescue at sea", "a film premiere",
)  # fmt: skip
ANGLES = (
    "its early history", "a common misunderstanding", "how beginners start", "what changed in the last decade",
    "a day in the life of an expert", "its costs and benefits", "an unusual event", "how it works", "a famous person",
    "its future", "the tools it needs", "a conflict it caused", "what went wrong once", "its role in a small town",
    "numbers everyone should know", "advice for travellers", "why it matters", "a new discovery",
)  # fmt: skip
PASSAGES = (
    "Write a passage about {topic}.", "Write a detailed news article about {topic}.",
    "Write an encyclopedia entry about {topic}.", "Tell me everything you know about {topic}.",
    "Write three paragraphs about {topic}.", "Write a short story that has to do with {topic}.",
    "Explain {topic} to a student, with names, places and dates.", "Write a newspaper report on {topic}, with quotes.",
    "Write a blog post about {topic}.", "Give an overview of {topic} in plain prose, without lists.",
)  # fmt: skip
OPENERS = (
    "What", "How", "Why", "Who", "When", "Where", "Which", "Write", "Explain", "Give me", "Can you", "I", "My", "Is",
    "What is the", "Who was the", "When did", "Where is", "How many", "How do I", "Write a Python", "Write a poem",
    "Write an email", "Compare", "Describe", "List", "Create", "Suppose", "Imagine", "Act as", "You are", "Please",
    "Fix the", "Rewrite", "Summarize", "Translate", "Classify", "Extract", "Identify", "Solve", "Find", "If", "In",
    "A", "The", "Given", "Consider", "Design", "Should", "Let", "Implement", "Draft", "Tell me", "Are", "Do",
    "What are some", "What is the difference between", "Edit the following", "Evaluate", "Help me",
)  # fmt: skip


@dataclass(frozen=True)
class PassageTask:
    """A task over a passage; `forms` hold {passage} and, where it needs one, {question}."""

    tag: str
    forms: tuple[str, ...]
    needs_question: bool = False
    numbered: bool = False

    def words(self, rng: random.Random, passage: str, question: str) -> str:
        shown = _numbered(passage) if self.numbered else passage
        return rng.choice(self.forms).format(passage=shown, question=question)


PASSAGE_TASKS = (
    PassageTask(
        "summary",
        (
            "Summarize: {passage}", "{passage}\n\nSummarize the text above in a few sentences.",
            "Summarise the following article:\n\n{passage}", "{passage}\n\nTL;DR",
            "What are the main points?\n\n{passage}",
            "Give a short summary of this text.\n{passage}", "Write highlights for this news story.\n\n{passage}",
        ),
    ),
    PassageTask(
        "reading",
        (
            "{passage}\n\nQuestion: {question}", "Answer the question using the text.\n\nText: {passage}\n\n{question}",
            "{question}\n\nUse only this passage: {passage}", "Read this:\n{passage}\n\nNow answer: {question}",
        ),
        needs_question=True,
    ),
    PassageTask(
        "retrieval",
        (
            "Answer the question with the help of these sources.\n\n{passage}\n\nQuestion: {question}\nAnswer:",
            "Context:\n{passage}\n\nGiven the context, {question}",
            "{passage}\nBased on the passages above: {question}",
            "Question: {question}\n\nSearch results:\n{passage}\n\nAnswer the question from the search results.",
        ),
        needs_question=True,
        numbered=True,
    ),
    PassageTask("question", ("{question}", "{question} Answer briefly.", "Q: {question}\nA:"), needs_question=True),
    PassageTask(
        "rewriting",
        (
            "Rewrite in simple words:\n\n{passage}", "Make this text more formal.\n\n{passage}",
            "Correct any mistakes in this text and give it back whole:\n{passage}",
            "Rewrite the text below as a letter to a friend.\n\n{passage}",
            "{passage}\n\nRewrite this in the past tense.",
            "Paraphrase the following.\n\n{passage}",
        ),
    ),
    PassageTask(
        "extraction",
        (
            "List all names, places and dates in this text.\n\n{passage}",
            "{passage}\n\nWhat are the key facts? Use bullets.",
            "Extract the main claims as a numbered list:\n{passage}", "Give five keywords for this text:\n\n{passage}",
            "Turn the text into a JSON object with title, topic and people.\n\n{passage}",
            "What is the tone of this passage, and why?\n\n{passage}",
        ),
    ),
    PassageTask(
        "continuation",
        ("Continue this text:\n\n{passage}", "{passage}\n\nWhat happens next?",
         "Write the next paragraph.\n\n{passage}"),
    ),
    PassageTask(
        "passage translation",
        ("Translate into German: {passage}", "Translate this text to French.\n\n{passage}",
         "{passage}\n\nTranslate the above into Spanish."),
    ),
)  # fmt: skip


def _numbered(passage: str) -> str:
    """The passage as two or three sources."""
    sentences = re.split(r"(?<=[.!?])\s+", passage)
    size = max(2, -(-len(sentences) // 3))
    parts = [" ".join(sentences[i : i + size]) for i in range(0, len(sentences), size)]
    return "\n".join(f"[{i}] {part}" for i, part in enumerate(parts, 1))


def topic(rng: random.Random) -> str:
    return f"{rng.choice(FIELDS)}: {rng.choice(ANGLES)}"


def topic_request(about: str) -> str:
    return f"Name one unusual topic for an article on {about}. Answer with the topic only."


def passage_request(rng: random.Random, about: str) -> str:
    return rng.choice(PASSAGES).format(topic=about)


def question_request(passage: str) -> str:
    return f"Write one short question that this text answers. Write only the question.\n\n{passage}"


def opener(rng: random.Random) -> str:
    """How the user's words begin; half the time the target decides."""
    return rng.choice(OPENERS) if rng.random() < 0.5 else ""


_NAMES = ("Ada", "Ben", "Carla", "Deniz", "Emil", "Fatima", "Goran", "Hana", "Ivan", "Jun", "Kofi", "Lena", "Mateo")
_THINGS = ("apples", "books", "stamps", "pencils", "tickets", "eggs", "marbles", "boxes", "coins", "cookies", "bricks")
_SUMS = (
    "{a} has {x} {t} and buys {y} more each week. How many {t} does {a} have after {z} weeks?",
    "{a} had {x} {t}, gave {y} to {b} and shared the rest equally among {z} friends. How many did each friend get?",
    "A shop sells {t} for ${y} each. {a} buys {z} and pays with ${x}. How much change is due?",
    "{a} reads {y} pages a day and {b} reads {z} pages a day. How many days until they have read {x} pages together?",
    "{a} and {b} have {x} {t} together. {a} has {y} more than {b}. How many {t} does {b} have?",
    "A train travels {x} miles in {z} hours, then {y} miles in one hour. What is its average speed?",
    "{a} earns ${y} an hour and works {z} hours a day for {w} days. After spending ${x}, how much is left?",
    "There are {x} {t} in {z} rows. {a} adds {w} rows of the same length. How many {t} are there now?",
    "{y}% of the {x} {t} are red, the rest is blue. How many are blue?",
    "What is {x} + {y} * {z}? Explain each step.",
    "A rectangle is {y} cm wide and {z} cm long. {a} makes it {w} cm longer. By how much does its area grow?",
)


def maths(rng: random.Random) -> str:
    a, b = rng.sample(_NAMES, 2)
    x, y, z, w = rng.randrange(40, 400, 4), rng.randint(2, 30), rng.randint(2, 12), rng.randint(2, 7)
    return rng.choice(_SUMS).format(a=a, b=b, t=rng.choice(_THINGS), x=x, y=y, z=z, w=w)


_LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")
_INTO = ('Translate to {language}: "{text}"', "How do you say this in {language}? {text}", "{text}\nIn {language}:")
_FROM = (
    "Translate {language} to English: {text}", "Translate this {language} sentence into English.\n\n{text}",
    "{text}\n\nTranslate the {language} text above to English.", 'What does "{text}" mean in English?',
)  # fmt: skip
_WHO = (
    ("Der Minister", "The minister"), ("Meine Nachbarin", "My neighbour"), ("Das Unternehmen", "The company"),
    ("Die Polizei", "The police"), ("Der Trainer", "The coach"), ("Eine Sprecherin der Stadt", "A city spokeswoman"),
    ("Der Verein", "The club"), ("Die Regierung", "The government"), ("Ein junger Arzt", "A young doctor"),
    ("Das Gericht in München", "The court in Munich"), ("Unsere Lehrerin", "Our teacher"),
    ("Der Künstler", "The artist"),
)  # fmt: skip
_WHEN = (
    ("am Montag", "on Monday"), ("in der vergangenen Woche", "last week"),
    ("nach langer Beratung", "after long debate"),
    ("trotz der Kritik", "despite the criticism"), ("zum ersten Mal", "for the first time"), ("gestern", "yesterday"),
    ("im Sommer 2015", "in the summer of 2015"), ("ohne Begründung", "without a reason"), ("heute Abend", "tonight"),
)  # fmt: skip
_HAS = (
    ("einen neuen Plan vorgestellt", "presented a new plan"), ("mehr Geld gefordert", "demanded more money"),
    ("die alte Brücke besucht", "visited the old bridge"), ("einen Fehler zugegeben", "admitted a mistake"),
    ("mit den Eltern gesprochen", "spoken with the parents"), ("den Vertrag unterschrieben", "signed the contract"),
    ("vor steigenden Preisen gewarnt", "warned of rising prices"), ("das Spiel gewonnen", "won the match"),
    ("eine Wohnung in Berlin gefunden", "found a flat in Berlin"), ("die Reise abgesagt", "cancelled the trip"),
    ("drei Bilder verkauft", "sold three pictures"), ("auf den Bericht reagiert", "responded to the report"),
)  # fmt: skip


def language(rng: random.Random) -> str:
    return rng.choice(_LANGUAGES)


def german(rng: random.Random) -> str:
    """One or two news-like sentences."""
    return " ".join(
        f"{rng.choice(_WHO)[0]} hat {rng.choice(_WHEN)[0]} {rng.choice(_HAS)[0]}." for _ in range(rng.randint(1, 2))
    )


def english(rng: random.Random) -> str:
    return f"{rng.choice(_WHO)[1]} has {rng.choice(_HAS)[1]} {rng.choice(_WHEN)[1]}."


def translate_into(rng: random.Random, language: str, text: str) -> str:
    return rng.choice(_INTO).format(language=language, text=text)


def translate_from(rng: random.Random, language: str, text: str) -> str:
    return rng.choice(_FROM).format(language=language, text=text)
