"""Prompts written for this project: edits of a function, and free chat."""

from __future__ import annotations

FUNCTIONS = [
    """def average_price(products):
    total = 0.0
    count = 0
    for product in products:
        if product.available:
            total += product.price
            count += 1
    if count == 0:
        return None
    return total / count
""",
    """def read_settings(path):
    settings = {}
    with open(path) as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            key, value = line.split("=", 1)
            settings[key.strip()] = value.strip()
    return settings
""",
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def size(self):
        return len(self.items)
""",
    """def merge_sorted(left, right):
    result = []
    i = 0
    j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    result.extend(left[i:])
    result.extend(right[j:])
    return result
""",
    """def count_words(text):
    counts = {}
    for word in text.lower().split():
        word = word.strip(".,;:!?")
        if word:
            counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda item: -item[1])
""",
]

CHANGES = [
    "Add type hints to this code. Reply with the whole code only.",
    "Add a short docstring to every function in this code. Reply with the whole code only.",
]

EDIT = [f"{change}\n\n```python\n{function}```" for function in FUNCTIONS for change in CHANGES]

CHAT = [
    "What should I pack for a weekend in the mountains?",
    "Explain why the sky is blue to a ten-year-old.",
    "Write a short poem about an old bicycle.",
    "What are the main differences between tea and coffee?",
    "How do I learn to play the guitar?",
    "Tell me a story about a lighthouse keeper.",
    "What is the point of a constitution?",
    "Give me some ideas for a birthday party for a quiet person.",
    "Why do cats purr?",
    "Describe a market in a small harbour town.",
    "How does a refrigerator work?",
    "What makes a good teacher?",
    "Compare living in a city with living in a village.",
    "Explain compound interest.",
    "What happens when we sleep?",
    "Write a letter to a friend who moved abroad.",
    "What is a black hole?",
    "How can I sleep better?",
    "Recommend some exercises for someone who sits all day.",
    "Why is bread dough kneaded?",
    "What did people do before clocks?",
    "Explain how vaccines work.",
    "Describe the sound of rain to someone who has never heard it.",
    "How do I write a cover letter?",
]
