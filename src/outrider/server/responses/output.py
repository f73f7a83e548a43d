"""The items of a response, built as the answer is read; every step is told of by events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

from outrider.server.tools.call_parser import Argued, Called, Event, Said

Told = dict[str, Any]


class Output:
    """Invariant: what the events have said of an item, one after the other, is what `items` holds."""

    def __init__(self) -> None:
        self.items: list[Told] = []

    def take(self, events: Iterable[Event]) -> Iterator[Told]:
        for event in events:
            match event:
                case Said(text):
                    yield from self._say(text)
                case Called(_, call, name):
                    yield from self._close()
                    begun = {"type": "function_call", "id": f"fc_{uuid4().hex}", "call_id": call, "name": name}
                    yield from self._open({**begun, "arguments": ""})
                case Argued(_, text):
                    self._last["arguments"] += text
                    yield self._about("response.function_call_arguments.delta", delta=text)

    def finish(self, complete: bool) -> Iterator[Told]:
        """Nothing follows. `complete`: whether the last item is whole."""
        if not self.items:
            yield from self._say("")
        yield from self._close("completed" if complete else "incomplete")

    def _say(self, text: str) -> Iterator[Told]:
        if not self.items or self._last["type"] != "message":
            yield from self._close()
            yield from self._open({"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "content": []})
            self._last["content"].append({"type": "output_text", "text": "", "annotations": []})
            yield self._about("response.content_part.added", content_index=0, part=dict(self._last["content"][0]))
        if text:
            self._last["content"][0]["text"] += text
            yield self._about("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def _open(self, item: Told) -> Iterator[Told]:
        self.items.append({**item, "status": "in_progress"})
        yield {"type": "response.output_item.added", **self._place, "item": _copy(self._last)}

    def _close(self, status: str = "completed") -> Iterator[Told]:
        if not self.items or self._last["status"] != "in_progress":
            return
        item = self._last
        if item["type"] == "message":
            part = dict(item["content"][0])
            yield self._about("response.output_text.done", content_index=0, text=part["text"], logprobs=[])
            yield self._about("response.content_part.done", content_index=0, part=part)
        else:
            yield self._about("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        item["status"] = status
        yield {"type": "response.output_item.done", **self._place, "item": _copy(item)}

    @property
    def _last(self) -> Told:
        return self.items[-1]

    @property
    def _place(self) -> Told:
        return {"output_index": len(self.items) - 1}

    def _about(self, kind: str, **said: Any) -> Told:
        return {"type": kind, "item_id": self._last["id"], **self._place, **said}


def _copy(item: Told) -> Told:
    """As it is now: it goes on to change."""
    return {**item, "content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)
