"""Rebuilds a tokenizer from GGUF metadata, as the model's own `tokenizer.json` describes it.

Two kinds exist: `gpt2` is byte-level BPE with its merges in the file; `llama` is SentencePiece BPE, where the
file has scores and the merges follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.pre_tokenizers import PreTokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_KEY = "tokenizer.ggml."

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen 2 and Llama 3 cut text into words; they differ in how many digits stay together."""

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Mistral does since Nemo: a capital after small letters begins a word, every digit stands alone."""


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of bos, eos, unk and pad, under the names chat templates use."""
    tokens = _tokens(metadata)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"{_KEY}{key}_token_id") for name, key in names.items()}
    return {name: tokens[i] for name, i in ids.items() if i is not None and 0 <= i < len(tokens)}


def build_tokenizer(metadata: Mapping[str, Any]) -> Backend:
    """The tokenizer the metadata describes; an unknown kind is a `ModelError` that names it."""
    kind = metadata.get(_KEY + "model")
    builders: dict[Any, Callable[[Mapping[str, Any]], Backend]] = {
        "gpt2": _byte_level,
        "llama": _sentencepiece,
    }
    if kind not in builders:
        raise ModelError(
            f"the GGUF file's tokenizer is of kind {kind!r}, which Outrider cannot build; known are gpt2 and llama."
        )
    try:
        backend = builders[kind](metadata)
    except ModelError:
        raise
    except Exception as error:  # the tokenizers package raises bare Exception for a vocabulary it cannot use
        raise ModelError(f"the GGUF file's tokenizer cannot be built: {error}.") from error
    _add_marked_tokens(backend, metadata)
    _add_bos_eos(backend, metadata)
    return backend


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = metadata.get(_KEY + "tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelError("the GGUF file has no vocabulary (tokenizer.ggml.tokens).")
    return tokens


def _byte_level(metadata: Mapping[str, Any]) -> Backend:
    from tokenizers import Tokenizer, decoders, models, normalizers

    pre = metadata.get(_KEY + "pre", "default")
    style = _PRE_TOKENIZERS.get(pre)
    if style is None:
        raise ModelError(
            f"the GGUF file's tokenizer splits text in the way {pre!r}, which Outrider does not know; "
            f"known are {', '.join(_PRE_TOKENIZERS)}. Use the model's Hugging Face folder instead."
        )
    merges = metadata.get(_KEY + "merges")
    if not isinstance(merges, list):
        raise ModelError("the GGUF file's tokenizer has no merges (tokenizer.ggml.merges).")
    model = models.BPE(
        vocab={token: i for i, token in enumerate(_tokens(metadata))},
        merges=[tuple(merge.split(" ", 1)) for merge in merges],
        ignore_merges=style.whole_words_first,
    )
    backend = Tokenizer(model)
    if style.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = style.make()
    backend.decoder = decoders.ByteLevel()
    return backend


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    make: Callable[[], PreTokenizer]
    whole_words_first: bool = False
    """A word that is a token is taken whole, whatever the merges would make of it."""
    adds_bos: bool = False
    """Where the file does not say."""
    nfc: bool = False


def _gpt2() -> PreTokenizer:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> PreTokenizer:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _falcon_like() -> PreTokenizer:
    """What llama.cpp does with a file that names no pre-tokenizer."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\p{P}$+<=>^~|]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )


def _words(pattern: str) -> Callable[[], PreTokenizer]:
    def make() -> PreTokenizer:
        from tokenizers import Regex, pre_tokenizers

        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return make


_LLAMA3 = _PreTokenizer(_words(_WORDS.replace("DIGITS", r"\p{N}{1,3}")), whole_words_first=True, adds_bos=True)
_QWEN2 = _PreTokenizer(_words(_WORDS.replace("DIGITS", r"\p{N}")), nfc=True)
_CL100K = replace(_LLAMA3, whole_words_first=False, adds_bos=False)
_STARCODER = _PreTokenizer(_smollm)
_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer(_gpt2),
    "olmo": _PreTokenizer(_gpt2, nfc=True),
    "default": _PreTokenizer(_falcon_like),
    "smollm": _STARCODER,
    "refact": _STARCODER,
    "starcoder": _STARCODER,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "tekken": _PreTokenizer(_words(_TEKKEN_WORDS), whole_words_first=True, adds_bos=True),
}


def _sentencepiece(metadata: Mapping[str, Any]) -> Backend:
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens, scores = _tokens(metadata), metadata.get(_KEY + "scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError("the GGUF file's tokenizer has no score for each token (tokenizer.ggml.scores).")
    unknown = metadata.get(_KEY + "unknown_token_id", 0)
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges_from_scores(tokens, scores),
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    prefix = bool(metadata.get(_KEY + "add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def merges_from_scores(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, best score first: SentencePiece always joins the
    neighbours whose union scores highest."""
    ids = {token: i for i, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-score, ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


_PHI3_PLAIN = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Phi 3's other control tokens swallow the white space behind them; files do not say so."""


def _add_marked_tokens(backend: Backend, metadata: Mapping[str, Any]) -> None:
    """Tokens found in the text before anything is split: control tokens, and those the author defined."""
    from tokenizers import AddedToken

    marked = list(zip(_tokens(metadata), metadata.get(_KEY + "token_type") or [], strict=False))
    # Without a prefix the normaliser only writes ▁ for spaces; a defined run of ▁ is looked for after it.
    late = metadata.get(_KEY + "model") == "llama" and not metadata.get(_KEY + "add_space_prefix", True)
    swallowing = metadata.get("general.architecture") == "phi3" and metadata.get(_KEY + "model") == "llama"
    backend.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False, rstrip=swallowing and text not in _PHI3_PLAIN)
            for text, kind in marked
            if kind in (_CONTROL, _UNKNOWN)
        ]
    )
    backend.add_tokens([AddedToken(text, normalized=late) for text, kind in marked if kind == _USER_DEFINED])


def _add_bos_eos(backend: Backend, metadata: Mapping[str, Any]) -> None:
    from tokenizers import processors

    style = _PRE_TOKENIZERS.get(metadata.get(_KEY + "pre", "default"))
    bos_default = metadata.get(_KEY + "model") == "llama" or (style is not None and style.adds_bos)
    named = special_tokens(metadata)
    template, pairs = ["$A"], []
    for name, key, default in (
        ("bos_token", "add_bos_token", bos_default),
        ("eos_token", "add_eos_token", False),
    ):
        if name in named and metadata.get(_KEY + key, default):
            template = [named[name], *template] if name == "bos_token" else [*template, named[name]]
            pairs.append((named[name], int(metadata[f"{_KEY}{name[:3]}_token_id"])))
    if pairs:
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=pairs)
