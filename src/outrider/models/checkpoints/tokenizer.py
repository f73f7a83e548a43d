"""Text to token ids and back. Wraps the `tokenizers` package; transformers is never imported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from outrider.errors import InvalidRequest, ModelError
from outrider.models.checkpoints.chat_template import ChatTemplate
from outrider.models.checkpoints.encoding import encoded
from outrider.models.checkpoints.spelled import Spelling
from outrider.models.checkpoints.token_bytes import byte_rule

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_NONE: Mapping[str, Any] = MappingProxyType({})


class Tokenizer:
    """`special_tokens` gives the text of `bos_token`, `eos_token`, … where the model has them.

    Invariant: `decode(ids)` is the bytes of the tokens one after the other, so text can be produced token by
    token; only the leading space that SentencePiece adds (`strips_leading_space`) is taken off at the start.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str],
        chat_template: str | None,
        tool_template: str | None = None,
        eos_token_ids: Sequence[int],
    ) -> None:
        """`tool_template`: for conversations with tools, where the model has another one for them."""
        self._rule = byte_rule(backend)
        backend.no_truncation()  # a tokenizer.json may carry the limits of somebody's training run
        backend.no_padding()
        self._backend = backend
        self._added = backend.get_added_tokens_decoder()
        self._spelling = Spelling(backend)
        self._known: dict[int, bytes] = {}
        self._template = None if chat_template is None else ChatTemplate(chat_template, special_tokens)
        self._with_tools = self._template if tool_template is None else ChatTemplate(tool_template, special_tokens)
        self.special_tokens = dict(special_tokens)
        self.strips_leading_space = self._rule.strips_space
        self.eos_token_ids = tuple(eos_token_ids)
        self.vocab_size: int = max([backend.get_vocab_size(), *(i + 1 for i in self._added)])

    @property
    def chat_template(self) -> str | None:
        return None if self._template is None else self._template.source

    @property
    def tool_template(self) -> str | None:
        """The one for conversations with tools."""
        return None if self._with_tools is None else self._with_tools.source

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with what the model puts around a text (a bos, say) unless told otherwise."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"prompt: the character at position {error.start} is half of a surrogate pair, not text"
            ) from error
        return encoded(self._backend, text, add_special_tokens)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = _NONE,
    ) -> str:
        """The conversation as text, by the model's own template, which is given the `tools` and `variables`."""
        calls = tools is not None or any("tool_calls" in each or each.get("role") == "tool" for each in messages)
        template = self._with_tools if calls else self._template
        if template is None:
            raise ModelError("this model has no chat template, so it cannot chat; give it plain text (--raw) instead.")
        return template.render(messages, add_generation_prompt, tools, variables)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = _NONE,
    ) -> list[int]:
        """Token ids of a conversation; the template itself writes bos where the model wants one. Control tokens come
        from the template alone: one that is written in a message, or in what is said of a tool, is encoded as the
        letters it is made of."""
        if self._spelling.found(said := (messages, tools, variables)):
            (messages, tools, variables), marks = self._spelling.hide(said)
            return self._spelling.encode(self.render_chat(messages, add_generation_prompt, tools, variables), marks)
        rendered = self.render_chat(messages, add_generation_prompt, tools, variables)
        return self.encode(rendered, add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to the text; nothing for special tokens and for ids without a token."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None and added.special:
            return b""
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        if token is None:
            return b""
        return self._rule.to_bytes(token) if added is None else self._rule.added_to_bytes(token)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole sequence."""
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    @property
    def control_tokens(self) -> dict[str, int]:
        """The names and ids of those that stand for no text."""
        return {added.content: token for token, added in self._added.items() if added.special}

    def vocabulary(self) -> dict[str, int]:
        """Every token as the vocabulary writes it, with its id."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    def fingerprint(self) -> str:
        """Of all tokens and their ids: equal for models that can speak of tokens by their ids."""
        pairs = sorted((token_id, token) for token, token_id in self.vocabulary().items())
        return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it; None for an id without a token."""
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def to_json(self) -> str:
        """The `tokenizer.json` of this tokenizer."""
        text: str = self._backend.to_str()
        return text
