"""Each client does what its own documentation shows first: text, streams, structured output, tools, scoring.

What the small model says is its own affair; that it is well formed, and understood by the client, is ours.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

URL = os.environ["OUTRIDER_URL"].rstrip("/") + "/v1"
MODEL = "smollm2-135m"
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]
    sunny: bool


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather of a city."""
    assert unit in ("celsius", "fahrenheit")
    return f"12 degrees {unit} in {city}"


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}


def test_openai() -> None:
    from openai import OpenAI, pydantic_function_tool

    client = OpenAI(base_url=URL, api_key="none", max_retries=0)
    words: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 80, "temperature": 0}
    parsed = client.chat.completions.parse(**words, response_format=Weather).choices[0].message.parsed
    assert isinstance(parsed, Weather)
    words |= {"tools": [pydantic_function_tool(Weather)], "tool_choice": "required", "parallel_tool_calls": False}
    answer: Any = client.chat.completions.parse(**words)
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)
    with client.chat.completions.stream(**words) as stream:
        kinds = {event.type for event in stream}
        final: Any = stream.get_final_completion().choices[0]
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert isinstance(final.message.tool_calls[0].function.parsed_arguments, Weather)
    assert final.finish_reason == "tool_calls"


def test_openai_async() -> None:
    from openai import AsyncOpenAI

    async def ask() -> str:
        async with AsyncOpenAI(base_url=URL, api_key="none") as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=QUESTION, max_tokens=16, stream=True, tools=[TOOL]
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_openai_responses(stream: bool) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=URL, api_key="none", max_retries=0)
    tool: Any = {"type": "function", "strict": True, **TOOL["function"]}
    asked: Any = {"model": MODEL, "input": QUESTION, "max_output_tokens": 80, "temperature": 0}
    called: Any = {**asked, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    call: Any
    if stream:
        with client.responses.stream(**asked, text_format=Weather) as events:
            said = events.get_final_response()
        with client.responses.stream(**called) as events:
            kinds = {event.type for event in events}
            call = events.get_final_response().output[0]
        assert "response.function_call_arguments.delta" in kinds
    else:
        said = client.responses.parse(**asked, text_format=Weather)
        call = client.responses.create(**called).output[0]
        assert client.responses.create(**asked).output_text
    assert isinstance(said.output_parsed, Weather)
    told = get_weather(**json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": told}
    assert client.responses.create(**{**asked, "input": [*QUESTION, call, result]}).output_text


def langchain(**options: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, base_url=URL, api_key="none", temperature=0, max_tokens=80, **options)


def test_langchain_tools() -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = langchain().bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    asked = [HumanMessage("What is the weather in Paris?")]
    said = bound.invoke(asked)
    (call,) = said.tool_calls
    assert said.invalid_tool_calls == []
    result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    assert langchain().invoke([*asked, said, result]).content
    pieces = [chunk for chunk in bound.stream(asked) if chunk.tool_call_chunks]
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [(call["name"], call["args"])]


def test_langchain_knows_what_is_too_long() -> None:
    from langchain_core.exceptions import ContextOverflowError

    with pytest.raises(ContextOverflowError):
        langchain().invoke("word " * 9000)


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_langchain_structured_output(method: str) -> None:
    chat = langchain().with_structured_output(Weather, method=method)
    assert isinstance(chat.invoke("The weather in Paris, as JSON."), Weather)


def test_litellm() -> None:
    import litellm

    words: Any = {
        "model": f"openai/{MODEL}",
        "api_base": URL,
        "api_key": "none",
        "messages": QUESTION,
        "max_tokens": 80,
    }
    choice = litellm.completion(**words, tools=[TOOL], tool_choice="required", temperature=0).choices[0]
    assert json.loads(choice.message.tool_calls[0].function.arguments)["unit"] in ("celsius", "fahrenheit")
    streamed = litellm.completion(**words, tools=[TOOL], tool_choice="required", temperature=0, stream=True)
    rebuilt = litellm.stream_chunk_builder(list(streamed)).choices[0].message
    assert rebuilt.tool_calls[0].function.arguments == choice.message.tool_calls[0].function.arguments
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**words, "messages": [{"role": "user", "content": "word " * 9000}]})


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(mode: str) -> None:
    import instructor
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(base_url=URL, api_key="none"), mode=instructor.Mode[mode])
    said = client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_model=Weather, max_retries=1, max_tokens=80, temperature=0
    )
    assert isinstance(said, Weather)


def test_pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
    agent = Agent(
        model,
        output_type=Weather,
        model_settings={"max_tokens": 80, "temperature": 0, "parallel_tool_calls": False},
    )
    assert isinstance(agent.run_sync("The weather in Paris?").output, Weather)


def test_llama_index() -> None:
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model=MODEL, api_base=URL, api_key="none", is_chat_model=True, is_function_calling_model=True, max_tokens=80,
        temperature=0, context_window=4096,
    )  # fmt: skip
    assert llm.complete("Hello").text
    tool = FunctionTool.from_defaults(get_weather)
    said = llm.chat_with_tools([tool], "The weather in Paris?", tool_required=True, allow_parallel_tool_calls=False)
    (call,) = llm.get_tool_calls_from_response(said)
    assert get_weather(**call.tool_kwargs)


def test_llm_with_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    models = [
        {"model_id": "here", "model_name": MODEL, "api_base": URL, "supports_tools": True, "supports_schema": True}
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    import llm

    model = llm.get_model("here")
    model.key = "none"
    said = model.prompt("The weather in Paris, as JSON.", schema=Weather, stream=False, temperature=0, max_tokens=80)
    Weather.model_validate_json(said.text())
    chain = model.chain("The weather in Paris?", tools=[get_weather], stream=False, options={"max_tokens": 40})
    assert chain.text()


def run(command: list[str], folder: Path, **variables: str) -> str:
    """A program at its user's terminal, as it were: with a home and settings of its own. What it says."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder), **variables},
        capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("options", [[], ["--code"], ["--shell", "--no-interaction"]], ids=["words", "code", "shell"])
def test_shell_gpt(options: list[str], tmp_path: Path) -> None:
    program = str(Path(sys.executable).parent / "sgpt")
    asked = [program, "--model", MODEL, "--no-cache", "--no-md", *options, "How are files listed?"]
    settings = {"API_BASE_URL": URL, "OPENAI_API_KEY": "none", "REQUEST_TIMEOUT": "300"}
    assert run(asked, tmp_path, **settings).strip()


def test_aider(tmp_path: Path) -> None:
    """It sends the repository's file, reads the stream, takes the edit out of it and commits what came. The form of an
    edit is asked of the server, for the model is too small to keep to it by itself."""
    repository, settings = tmp_path / "work", tmp_path / "settings.yml"
    repository.mkdir()
    (repository / "greet.py").write_text("# Nothing yet.\n")
    edit = "greet\\.py\n```python\n[^`#]{20,300}\n```\n"
    parameters = {"max_tokens": 256, "extra_body": {"guided_regex": edit}}
    settings.write_text(json.dumps([{"name": f"openai/{MODEL}", "edit_format": "whole", "extra_params": parameters}]))
    for words in ("init -q", "config user.name me", "config user.email me@here", "add .", "commit -qm first"):
        run(["git", *words.split()], repository)
    said = run(
        [
            *(f"{os.environ['OUTRIDER_AGENTS']}/aider", "--model", f"openai/{MODEL}", "--openai-api-base", URL),
            *("--openai-api-key", "none", "--model-settings-file", str(settings), "--yes-always", "--no-gitignore"),
            *("--no-check-update", "--no-show-model-warnings", "--no-show-release-notes", "--no-analytics"),
            *("--map-tokens", "0", "--no-pretty", "--no-suggest-shell-commands", "greet.py"),
            *("--message", "Write a function greet(name) in greet.py that prints Hello and the name."),
        ],
        repository,
    )
    assert "Applied edit to greet.py" in said
    assert "#" not in (repository / "greet.py").read_text()
    assert run(["git", "log", "--format=%s"], repository).count("\n") == 2, "the edit was committed"


def test_lm_eval(tmp_path: Path) -> None:
    """A task of loglikelihoods from a file here; among nonsense the right ending is chosen."""
    import lm_eval
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    rows = [
        {"start": "The capital of France is", "ends": [" Paris.", " jumped green of.", " 7 7 7 7."], "right": 0},
        {"start": "Birds fly in the", "ends": [" the the was.", " sky.", " semicolon."], "right": 1},
        {"start": "One, two, three,", "ends": [" banana.", " France.", " four."], "right": 2},
        {"start": "She opened the door and", "ends": [" walked in.", " purple under is.", " 0x3f."], "right": 0},
    ]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "endings",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.json")}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{start}}",
        "doc_to_choice": "{{ends}}",
        "doc_to_target": "{{right}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    model = LocalCompletionsAPI(
        base_url=f"{URL}/completions", model=MODEL, tokenizer=os.environ["OUTRIDER_TOKENIZER"], max_length=4096
    )
    done = lm_eval.simple_evaluate(model=model, tasks=[task], task_manager=TaskManager(), bootstrap_iters=0)
    assert done["results"]["endings"]["acc,none"] == 1.0
