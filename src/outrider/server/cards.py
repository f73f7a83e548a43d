"""What clients are told of a model: an entry of /v1/models."""

from __future__ import annotations

from importlib.util import find_spec
from time import time
from typing import Any

from outrider.server.served import Served

Card = dict[str, Any]


def unknown_card(name: str) -> Card:
    """Of a model that was not loaded yet."""
    return {"id": name, "object": "model", "created": int(time()), "owned_by": "outrider"}


def card_of(served: Served) -> Card:
    """Plain values only: it outlives the model."""
    llm, place = served.llm, served.llm.place
    return {
        **unknown_card(served.name),
        "max_model_len": llm.model.max_context,
        "capabilities": _capabilities(served),
        "outrider": {
            "drafters": list(served.drafters),
            "default_drafter": served.default_drafter,
            "max_context": llm.model.max_context,
            "max_choices": served.service.capacity,
            "dtype": place.precision.name,
            "device": place.device.type,
        },
    }


def _capabilities(served: Served) -> list[str]:
    """What may be asked of it: tools and formats need grammars, conversations a template."""
    can = {
        "completion": True,
        "logprobs": True,
        "chat": served.llm.tokenizer.chat_template is not None,
        "structured_outputs": (grammars := find_spec("llguidance") is not None),
        "tools": grammars and served.llm.tokenizer.chat_template is not None,
    }
    return [name for name, able in can.items() if able]
