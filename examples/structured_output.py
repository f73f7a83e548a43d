"""An answer that a JSON schema describes: `python examples/structured_output.py [MODEL]` (needs outrider[grammar]).

What the schema leaves no choice about is drafted for nothing: whole names of fields take one pass.
"""

from __future__ import annotations

import json
import sys

from outrider import LLM, Grammar, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "weather": {"enum": ["sun", "rain", "snow"]},
        "temperature_celsius": {"type": "integer", "minimum": -40, "maximum": 50},
    },
    "required": ["city", "weather", "temperature_celsius"],
    "additionalProperties": False,
}


def main(model: str = "smollm2-135m") -> None:
    params = SamplingParams(max_tokens=128, temperature=0, grammar=Grammar.json_schema(SCHEMA))
    with LLM(model, max_batch=1) as llm:
        done = llm.generate("It is a fine day in Lisbon, 24 degrees. The weather as JSON: ", params)[0]
        print(json.dumps(json.loads(done.text), indent=2))
        print(f"{len(done.token_ids)} tokens in {done.steps} passes")


if __name__ == "__main__":
    main(*sys.argv[1:])
