"""Where prompts come from: a file of a person's own, or the model's chat template, taken apart so that the target can
write in the user's place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import TrainingError
from outrider.models.checkpoints.tokenizer import Tokenizer

_FIRST, _ANSWER, _SECOND = "OutriderFirst", "OutriderAnswer", "OutriderSecond"


def read_prompts(path: Path) -> list[tuple[str, ...]]:
    """The user's turns of each conversation. A .jsonl file has an object with "prompt" (a text) or "turns" (a list of
    texts) per line; any other file a prompt per line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: JSON may hold other separators
    except OSError as error:
        raise TrainingError(f"prompts: {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise TrainingError(f"prompts: {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    as_objects = path.suffix in (".jsonl", ".json")
    prompts = [
        _turns(line, f"prompts: line {number} of {path}") if as_objects else (line.strip(),)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise TrainingError(f"prompts: {path} holds none.")
    return prompts


def _turns(line: str, where: str) -> tuple[str, ...]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise TrainingError(f"{where} is not JSON ({error}).") from error
    if not isinstance(entry, dict) or not ("prompt" in entry or "turns" in entry):
        raise TrainingError(f'{where} must be an object with "prompt" or "turns".')
    turns = entry["turns"] if "turns" in entry else [entry["prompt"]]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise TrainingError(f'{where}: "prompt" must be a text, "turns" a list of texts, none of them empty.')
    return tuple(turns)


@dataclass(frozen=True)
class Frame:
    """A conversation as token ids: `before` the user's first words, `after` a user's words up to the answer, `between`
    an answer and the user's next words. Without a chat template a text is its own conversation, of one turn."""

    tokenizer: Tokenizer
    chats: bool
    before: tuple[int, ...]
    after: tuple[int, ...]
    between: tuple[int, ...]
    stops: tuple[int, ...]
    """Ids that end an answer, or the user's words: give them to the writer."""
    ending: str
    """The text that follows the user's words; where no token stops them, they end here."""

    @staticmethod
    def of(tokenizer: Tokenizer) -> Frame:
        if tokenizer.chat_template is None:
            start = tokenizer.encode("") or list(tokenizer.eos_token_ids[:1])
            if not start:
                raise TrainingError("the model has neither a chat template nor a token to start from; give prompts.")
            return Frame(tokenizer, False, tuple(start), (), (), tokenizer.eos_token_ids, "")
        one = tokenizer.render_chat([{"role": "user", "content": _FIRST}])
        roles = (("user", _FIRST), ("assistant", _ANSWER), ("user", _SECOND))
        two = tokenizer.render_chat([{"role": role, "content": text} for role, text in roles])
        before, _, after = one.partition(_FIRST)
        between = two.partition(_ANSWER)[2].partition(_SECOND)[0]
        if _FIRST not in one or not two.startswith(before) or _SECOND not in two:
            raise TrainingError(
                "the model's chat template does not repeat what the user says, so no prompt can be made."
            )

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        stops = dict.fromkeys(tokenizer.eos_token_ids)
        if ids(after) and not tokenizer.token_bytes(ids(after)[0]):  # a special token: ends a turn and nothing else
            stops[ids(after)[0]] = None
        return Frame(tokenizer, True, ids(before), ids(after), ids(between), tuple(stops), after)

    def first(self, words: str) -> list[int]:
        """The prompt that asks `words`, as chatting would render it."""
        if not self.chats:
            return self.tokenizer.encode(words)
        return self.tokenizer.apply_chat_template([{"role": "user", "content": words}])

    def reopening(self, conversation: Sequence[int]) -> list[int]:
        """An answered conversation up to the user's next words, as `before` is up to the first; where the answer ended
        with the token the template puts there, that stays single."""
        skip = 1 if self.between and conversation[-1] == self.between[0] else 0
        return [*conversation, *self.between[skip:]]

    def asked(self, opening: Sequence[int], words: str) -> list[int]:
        """An opening, the words, and what leads to the answer."""
        return [*opening, *self.tokenizer.encode(words, add_special_tokens=False), *self.after]

    def words(self, ids: Sequence[int], finished: bool) -> str | None:
        """What was written in the user's place; None where it has no end or is no text."""
        text = self.tokenizer.decode(ids)
        if not finished:
            marker = self.ending.strip()
            if not marker or marker not in text:
                return None
            text = text.partition(marker)[0]
        text = text.strip()
        return text if len(text) >= 3 and "\ufffd" not in text else None
