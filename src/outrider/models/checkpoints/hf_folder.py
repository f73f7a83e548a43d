"""The tokenizer and JSON files of a Hugging Face model folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ModelError
from outrider.models.checkpoints.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_SLOW_TOKENIZERS = ("tokenizer.model", "vocab.json", "spiece.model", "vocab.txt", "tekken.json")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """A JSON object; {} for an optional file that is not there."""
    if optional and not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); fetch it again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} does not hold a JSON object; fetch it again.")
    return content


def folder_tokenizer(path: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Tokenizer:
    """The folder's tokenizer, set up as transformers would: `tokenizer.json` decides whether bos is added."""
    settings = read_json(path / "tokenizer_config.json", optional=True)
    legacy = read_json(path / "special_tokens_map.json", optional=True)
    special = {
        name: text for name in _SPECIAL if (text := _text(settings.get(name)) or _text(legacy.get(name))) is not None
    }
    backend = _read_backend(path)
    _add_missing_tokens(backend, settings)
    more = settings.get("additional_special_tokens") or settings.get("extra_special_tokens") or []
    _mark_special(backend, [*special.values(), *(text for token in more if (text := _text(token)))])
    templates = _chat_templates(path, settings)
    return Tokenizer(
        backend,
        special_tokens=special,
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
        eos_token_ids=_eos_ids(backend, special, config, generation),
    )


def _read_backend(path: Path) -> Backend:
    from tokenizers import Tokenizer as Backend

    file = path / "tokenizer.json"
    if not file.is_file():
        slow = [name for name in _SLOW_TOKENIZERS if (path / name).is_file()]
        if slow:
            raise ModelError(
                f"{path} has only a slow tokenizer ({', '.join(slow)}); make tokenizer.json once with "
                "transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
            )
        raise ModelError(f"{path} has no tokenizer.json; is the download complete?")
    try:
        return Backend.from_file(str(file))
    except Exception as error:  # the tokenizers package raises bare Exception for a file it cannot read
        raise ModelError(f"{file} cannot be read ({error}); fetch it again.") from error


def _text(token: Any) -> str | None:
    """A special token is written as text, or as an object with its `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _add_missing_tokens(backend: Backend, settings: Mapping[str, Any]) -> None:
    """Tokens that only `tokenizer_config.json` names; they must land on the ids it gives them."""
    from tokenizers import AddedToken

    listed: dict[str, Any] = settings.get("added_tokens_decoder") or {}
    for i, token in sorted((int(key), value) for key, value in listed.items()):
        text = _text(token)
        if text is None or backend.id_to_token(i) == text:
            continue
        flags = {
            key: bool(token[key])
            for key in ("special", "normalized", "lstrip", "rstrip", "single_word")
            if key in token
        }
        (backend.add_special_tokens if flags.get("special") else backend.add_tokens)([AddedToken(text, **flags)])
        if backend.token_to_id(text) != i:
            raise ModelError(
                f"tokenizer_config.json gives {text!r} the id {i}, tokenizer.json has no room for it there."
            )


def _mark_special(backend: Backend, texts: Iterable[str]) -> None:
    """Tokens the settings call special are never shown, also where `tokenizer.json` does not say so."""
    from tokenizers import AddedToken

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    new = [text for text in texts if text not in known and backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(new)])


def _chat_templates(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name: files of their own, else what `tokenizer_config.json` holds. A single one is the default."""
    files = {each.stem: each for each in (path / "additional_chat_templates").glob("*.jinja")}
    if (file := path / "chat_template.jinja").is_file():
        files["default"] = file
    held = settings.get("chat_template") or read_json(path / "chat_template.json", optional=True).get("chat_template")
    if not isinstance(held, list):
        held = [{"name": "default", "template": held}]
    named = {item.get("name"): item.get("template") for item in held if isinstance(item, dict)}
    named |= {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str) and text}


def _eos_ids(
    backend: Backend, special: Mapping[str, str], config: Mapping[str, Any], generation: Mapping[str, Any]
) -> Sequence[int]:
    """What ends a text: the generation config's list (else the config's), and the tokenizer's own eos."""
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    if "eos_token" in special:
        ids.append(backend.token_to_id(special["eos_token"]))
    return tuple(dict.fromkeys(int(i) for i in ids if i is not None))
