"""Many questions at once to `outrider serve`, by OpenAI's own client: `python examples/async_client.py [URL]`.

Within one program, without a server, `outrider.AsyncLLM` does the same.
"""

from __future__ import annotations

import asyncio
import sys

from openai import AsyncOpenAI

QUESTIONS = ["Name a river.", "Name a mountain.", "Name a lake."]


async def ask(client: AsyncOpenAI, question: str) -> str:
    stream = await client.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": question}],
        max_tokens=24,
        temperature=0,
        stream=True,
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def main(url: str = "http://127.0.0.1:8000") -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answers = await asyncio.gather(*(ask(client, question) for question in QUESTIONS))
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"{question} {answer}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
