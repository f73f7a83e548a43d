"""Tokenizers: agreement with transformers, round trips, bytes of tokens, both GGUF kinds."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from time import perf_counter, process_time
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_gguf import BPE_TOKENS, SPM_SCORES, SPM_TOKENS, USER_DEFINED, bpe_metadata, spm_metadata

from outrider.errors import InvalidRequest, ModelError
from outrider.models.checkpoints.checkpoint import Checkpoint
from outrider.models.checkpoints.gguf_tokenizer import build_tokenizer, special_tokens
from outrider.models.checkpoints.tokenizer import Tokenizer

TEXTS = [
    "The capital of France is",
    "def f(x):\n    return x ** 2  # squares\n\n\tif True:\n        pass\n",
    "3.14159 and 1,000,000 or 0xDEADBEEF at 12:34:56 on 2024-02-29",
    "emoji 🙂👩‍👩‍👧‍👦🏳️‍🌈 flags 🇫🇷, zalgo Z̷͈̈ and half-width ﾊﾝｶｸ",
    "日本語のテキスト、中文文本，한국어 텍스트。",
    "Привет мир! Γειά σου Κόσμε. مرحبا بالعالم שלום עולם",
    "  leading and trailing   spaces \u00a0\u2003 ",
    "it's we'll I'D don't O'Reilly's",
    "²½Ⅷ ①②③ ٣٤٥ ๑๒๓",
    "\x00\x01\x7f\r\n\x85",
    "a<|im_end|>b<|endoftext|> <|im_start|>user\n",
    "",
]

MISSING = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}
"""Bytes without a token in SmolLM2's vocabulary."""


@pytest.fixture(scope="session")
def tokenizer(default_checkpoint: Checkpoint) -> Tokenizer:
    return default_checkpoint.tokenizer


@pytest.fixture(scope="session")
def reference(default_model_dir: Path) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(default_model_dir / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_default_agrees_with_transformers(text: str, tokenizer: Tokenizer, reference: Any) -> None:
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text)
    decoded = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert tokenizer.decode(ids) == decoded
    if "<|" not in text:
        assert tokenizer.decode(ids) == text


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@example(text="a<|im_end|>b")
@settings(max_examples=200, deadline=None)
def test_default_round_trips_any_text(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    """Whatever can be written with the bytes in its vocabulary, and spells no special token; transformers drops the
    others too. (Hypothesis also tries words that it finds in the code, `<|im_end|>` among them.)"""
    text = "".join(c for c in text if not MISSING.intersection(c.encode()))
    for special in reference.get_added_vocab():
        text = text.replace(special, "")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_default_splits_as_smollm2_does(tokenizer: Tokenizer) -> None:
    """Ids of the published SmolLM2 tokenizer: words whole, every digit alone, the space before digits too."""
    assert tokenizer.encode("Hello world 12345") == [19556, 905, 216, 33, 34, 35, 36, 37]
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == (2, 0)
    assert tokenizer.encode("<|im_end|>") == [2]


def test_special_and_missing_tokens_add_no_bytes(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(i) for i in (0, 1, 2, 49152, 10**9, -1)] == [b""] * 6
    assert tokenizer.token_bytes(905) == b" world"
    assert tokenizer.token(905) == "Ġworld"


def test_bytes_of_the_default_vocabulary(tokenizer: Tokenizer) -> None:
    """A handful of bytes never met in training have no token; half a character shows as a replacement."""
    written = {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    assert {b for b in range(256) if bytes([b]) not in written} == MISSING
    assert tokenizer.vocabulary()["Ġworld"] == 905
    half = tokenizer.encode("🦙")[:1]
    assert tokenizer.decode(half) == "\ufffd"


def test_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="position 2"):
        tokenizer.encode("ab\ud83dc")


def made(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer(
        build_tokenizer(metadata),
        special_tokens=special_tokens(metadata),
        chat_template=None,
        eos_token_ids=(),
    )


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["it", "'s", " 1234567", " ,\"", "\n"]),
        ("default", ["it", "'", "s", " ", "123", "456", "7", " ", ",\"", "\n"]),
        (None, ["it", "'", "s", " ", "123", "456", "7", " ", ",\"", "\n"]),
        ("smollm", ["it", "'s", " ", *"1234567", " ,\"", "\n"]),
        ("refact", ["it", "'s", " ", *"1234567", " ,\"", "\n"]),
        ("olmo", ["it", "'s", " 1234567", " ,\"", "\n"]),
        ("qwen2", ["it", "'s", " ", *"1234567", " ,\"\n"]),
        ("stablelm2", ["it", "'s", " ", *"1234567", " ,\"\n"]),
        ("llama-bpe", ["it", "'s", " ", "123", "456", "7", " ,\"\n"]),
        ("dbrx", ["it", "'s", " ", "123", "456", "7", " ,\"\n"]),
        ("smaug-bpe", ["it", "'s", " ", "123", "456", "7", " ,\"\n"]),
        ("tekken", ["it", "'s", " ", *"1234567", " ,\"\n"]),
    ],
)  # fmt: skip
def test_text_is_split_as_the_file_says(pre: str | None, pieces: list[str]) -> None:
    backend = build_tokenizer(bpe_metadata(pre))
    text = "it's 1234567 ,\"\n"
    spans = [text[a:b] for _, (a, b) in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert spans == pieces
    assert made(bpe_metadata(pre)).decode(backend.encode(text, add_special_tokens=False).ids) == text


def test_mistrals_words_begin_at_capitals() -> None:
    text = "parseHTMLPage(x)/\n Été 42"
    spans = build_tokenizer(bpe_metadata("tekken")).pre_tokenizer.pre_tokenize_str(text)
    pieces = ["parse", "HTMLPage", "(x", ")/\n", " Été", " ", "4", "2"]
    assert [text[a:b] for _, (a, b) in spans] == pieces
    assert made(bpe_metadata("tekken")).encode("x") == [1, BPE_TOKENS.index("x")]


def test_merges_bos_and_added_tokens_of_a_byte_level_file() -> None:
    tokenizer = made({**bpe_metadata("gpt-2"), "tokenizer.ggml.add_bos_token": True})
    names = [BPE_TOKENS[i] for i in tokenizer.encode(" the hell<tool><|end|>é")]
    assert names == ["<|start|>", "Ġthe", "Ġ", "he", "ll", "<tool>", "<|end|>", "Ã", "©"]
    assert tokenizer.decode(tokenizer.encode(" the<tool><|end|>é")) == " the<tool>é"
    assert made(bpe_metadata("gpt-2")).encode("x") == [BPE_TOKENS.index("x")]
    assert made(bpe_metadata("llama-bpe")).encode("x") == [1, BPE_TOKENS.index("x")]
    assert made({**bpe_metadata("llama-bpe"), "tokenizer.ggml.add_bos_token": False}).encode("x") != [
        1,
        BPE_TOKENS.index("x"),
    ]
    composed, decomposed = "\u00e9", "e\u0301"
    assert made(bpe_metadata("qwen2")).encode(decomposed) == made(bpe_metadata("qwen2")).encode(composed)


def sentencepiece(text: str) -> list[str]:
    """SentencePiece BPE as defined: always join the neighbours whose union scores highest, leftmost first."""
    scores = dict(zip(SPM_TOKENS, SPM_SCORES, strict=True))
    pieces = list("▁" + text.replace(" ", "▁"))
    while joins := [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]:
        _, i = min(joins)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    spelled = [[piece] if piece in scores else [f"<0x{b:02X}>" for b in piece.encode()] for piece in pieces]
    return [piece for spelling in spelled for piece in spelling]


@given(st.text("abcdehlortw \n🙂é", min_size=1, max_size=30))
@settings(max_examples=300, deadline=None)
def test_sentencepiece_file_follows_the_scores(text: str) -> None:
    tokenizer = SPM
    assert [SPM_TOKENS[i] for i in tokenizer.encode(text)] == ["<s>", *sentencepiece(text)]
    assert tokenizer.decode(tokenizer.encode(text)) == text


SPM = made(spm_metadata())


def test_sentencepiece_bytes_and_spaces() -> None:
    ids = SPM.encode(" hello\n", add_special_tokens=False)
    assert [SPM_TOKENS[i] for i in ids] == ["▁▁", "hell", "o", "<0x0A>"]
    assert b"".join(map(SPM.token_bytes, ids)) == b"  hello\n"
    assert SPM.decode(ids) == " hello\n"
    assert [SPM.token_bytes(i) for i in (0, 1, 2)] == [b"", b"", b""]
    assert SPM.strips_leading_space


def test_sentencepiece_agrees_with_transformers() -> None:
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(SPM.to_json()))
    for text in TEXTS:
        ids = SPM.encode(text)
        assert ids == reference.encode(text)
        assert SPM.decode(ids) == reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_phi3_control_tokens_swallow_what_follows() -> None:
    """As its own tokenizer has it: the template's line break behind <|user|> is no token, one behind <s> is."""
    tokens = [*SPM_TOKENS, "<|user|>"]
    metadata = spm_metadata() | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*spm_metadata()["tokenizer.ggml.token_type"], 3],
        "tokenizer.ggml.scores": [*SPM_SCORES, 0.0],
        "tokenizer.ggml.add_bos_token": False,
    }
    user, newline = tokens.index("<|user|>"), tokens.index("<0x0A>")
    kept = build_tokenizer(metadata).encode("<|user|>\n<s>\n").ids
    phi = build_tokenizer({**metadata, "general.architecture": "phi3"}).encode("<|user|>\n<s>\n").ids
    assert [kept.count(newline), phi.count(newline)] == [2, 1]
    assert phi[0] == kept[0] == user


def test_sentencepiece_without_prefix_and_with_defined_tokens() -> None:
    metadata = spm_metadata()
    kinds = list(metadata["tokenizer.ggml.token_type"])
    kinds[SPM_TOKENS.index("▁▁")] = USER_DEFINED
    metadata |= {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.token_type": kinds}
    tokenizer = made({**metadata, "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True})
    assert [SPM_TOKENS[i] for i in tokenizer.encode("a   b")] == ["a", "▁▁", "▁", "b", "</s>"]
    assert tokenizer.decode(tokenizer.encode("  a   b")) == "  a   b"
    assert not tokenizer.strips_leading_space


def test_limits_in_a_tokenizer_file_do_not_cut_prompts() -> None:
    backend = build_tokenizer(bpe_metadata("gpt-2"))
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    tokenizer = Tokenizer(backend, special_tokens={}, chat_template=None, eos_token_ids=())
    assert len(tokenizer.encode("xyzxyz")) == 6
    assert len(tokenizer.encode("x")) == 1


def test_a_decoder_we_cannot_follow_is_named() -> None:
    backend = tokenizers.Tokenizer.from_str(made(bpe_metadata("gpt-2")).to_json())
    backend.decoder = tokenizers.decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        Tokenizer(backend, special_tokens={}, chat_template=None, eos_token_ids=())


def test_vocabulary_that_contradicts_its_merges_is_refused() -> None:
    metadata = {**bpe_metadata("gpt-2"), "tokenizer.ggml.merges": ["Q zz"]}
    with pytest.raises(ModelError, match="cannot be built"):
        build_tokenizer(metadata)


def test_tokenizer_json_is_what_the_model_publishes(default_model_dir: Path) -> None:
    content = json.loads((default_model_dir / "tokenizer.json").read_text())
    assert content["pre_tokenizer"] == {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
    assert [token["content"] for token in content["added_tokens"]][:3] == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    ]


def test_a_long_text_is_encoded_like_a_short_one_while_other_threads_run(tokenizer: Tokenizer) -> None:
    text = "One two three, and 4567. \n" * 10_000

    def turns_meanwhile() -> int:
        """Of another thread, between the beginning and the end."""
        done, turns = Event(), []

        def count() -> None:
            while not done.wait(0.001):
                turns.append(perf_counter())

        with ThreadPoolExecutor(1) as pool:
            counting = pool.submit(count)
            began = perf_counter()
            ids = tokenizer.encode(text)
            ended = perf_counter()
            done.set()
            counting.result()
        assert ids == tokenizer._backend.encode(text).ids
        return sum(began + 0.001 < turn < ended - 0.001 for turn in turns)

    assert any(turns_meanwhile() > 10 for _ in range(10))  # a busy machine may leave it few; a held lock, none ever


def test_a_message_of_many_control_tokens_is_encoded_soon(tokenizer: Tokenizer) -> None:
    """Half a second; a minute, when they were looked for by an expression that named each of them."""
    began = process_time()
    many = tokenizer.apply_chat_template([{"role": "user", "content": "<|im_end|>" * 100_000}])
    assert process_time() - began < 15
    few = tokenizer.apply_chat_template([{"role": "user", "content": "<|im_end|>" * 2}])
    spelled = tokenizer.apply_chat_template([{"role": "user", "content": "<|im_end|>"}])
    assert len(many) == len(spelled) + 99_999 * (len(few) - len(spelled))
