"""Forty short prompts of mixed kind and length for equality runs."""

from __future__ import annotations

FUNCTION = """def total(items):
    result = 0
    for item in items:
        result += item.price * item.count
    return result
"""

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "1, 2, 3, 4, 5,",
    "Rename `item` to `entry` in this function:\n" + FUNCTION + "\nHere is the function:\n",
    "Water boils at",
    "Q: What is 12 + 30?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "import numpy as np\n\ndef softmax(x):\n",
    "Translate to French: The cat sleeps on the chair.\nFrench:",
    "a b c a b c a b c a b",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "List three fruits:\n1.",
    "SELECT name, age FROM users WHERE",
    "In a shocking finding, scientists discovered a herd of",
    '{"name": "Ada", "age": 36, "city": "London"}\n{"name": "Alan",',
    "def total(items):\n",
    "Summarise: The meeting began at nine. The budget was agreed. The next meeting is in May.\nSummary:",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(",
    "Roses are red,",
    "The Pythagorean theorem says that",
    "<html>\n<head>\n<title>",
    "Monday, Tuesday, Wednesday,",
    "To make tea, first",
    "The opposite of hot is",
    "Hello! How are you today?",
    "Add a docstring to this function.\n" + FUNCTION + "\n",
    "There are many reasons to learn a language. First,",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "She opened the door and saw",
    "git commit -m",
    "The three states of matter are",
    "Name: John Smith\nName: Jane Smith\nName:",
    "It was a dark and stormy night; the rain fell in torrents",
    "print('hello')\nprint('hello')\n",
    "The mitochondria is",
    "Shopping list: milk, eggs, bread,",
    "If x = 3 and y = 4, then x * y =",
    "On 20 July 1969,",
    "café, naïve, 東京, 🙂 and",
    "To be, or not to be, that is the question: To be, or not to be,",
]
