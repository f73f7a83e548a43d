"""`outrider serve`: the model behind OpenAI's protocol. Thin: the work is in `outrider.server`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.memory import keep_for_good
from outrider.cli.options import DEFAULT_MODEL, Dtype, draft_length_option
from outrider.cli.screen import note
from outrider.errors import InvalidRequest

_model = partial(typer.Option, rich_help_panel="Model")
_server = partial(typer.Option, rich_help_panel="Server")


def serve(
    model: Annotated[
        list[str],
        _model(
            "--model",
            "-m",
            metavar="MODEL",
            help="Known name, model folder, GGUF file or hub id. Given several times: the first is the default, and "
            "the others are loaded when somebody asks for them.",
        ),
    ] = [DEFAULT_MODEL],  # noqa: B006 (typer reads it and nobody changes it)
    unload_after: Annotated[
        float,
        _model(
            "--unload-after",
            min=0,
            metavar="SECONDS",
            help="Of several models, unload one that nobody has used for so long; 0: none.",
        ),
    ] = 600,
    drafter: Annotated[
        str,
        _model(
            "--drafter",
            metavar="DRAFTER",
            help="Who proposes tokens: none, ngram, suffix, head[:PATH] (a trained head), model:PATH or auto.",
        ),
    ] = "auto",
    draft_length: Annotated[
        str,
        _model(
            "--draft-length",
            parser=draft_length_option,
            metavar="N|auto",
            help="Most tokens drafted per step and answer; auto stops drafting when it does not pay.",
        ),
    ] = "auto",
    dtype: Annotated[
        Dtype,
        _model("--dtype", metavar="auto|bf16|fp16|fp32|int8|fp8|native", help="Number format of weights and cache."),
    ] = "auto",
    device: Annotated[str, _model("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int | None, _model("--threads", min=1, metavar="N", help="CPU threads.")] = None,
    bitwise: Annotated[
        bool | None,
        _model(
            "--bitwise/--no-bitwise",
            help="Round alike in every pass, so that bf16 and fp16 answers, too, do not depend on what else runs; "
            "on by default where it is nearly free.",
        ),
    ] = None,
    max_batch: Annotated[
        int | None,
        _model(
            "--max-batch",
            min=1,
            metavar="N",
            help="Most answers decoded at the same time; not given: 16, on a GPU 64, on one of 40 GB or more 256.",
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        _model("--max-context", min=2, metavar="N", help="Most tokens of prompt and answer to make room for."),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        _model("--kv-tokens", min=2, metavar="N", help="Most tokens in the cache over all answers under way."),
    ] = None,
    gpu_memory: Annotated[
        float,
        _model(
            "--gpu-memory",
            min=0.01,
            max=1,
            metavar="X",
            help="Part of the GPU that weights and cache may take; several models share it.",
        ),
    ] = 0.9,
    remember: Annotated[
        bool,
        _model(
            "--remember",
            help="Look up drafts in earlier answers, too. Only where all requests have one owner: others could tell "
            "by the time it takes what was answered before.",
        ),
    ] = False,
    host: Annotated[
        str, _server("--host", metavar="HOST", help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, _server("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0: any free one.")
    ] = 8000,
    api_key: Annotated[
        str | None,
        _server(
            "--api-key",
            metavar="KEY",
            envvar="OUTRIDER_API_KEY",
            show_envvar=False,
            help="Ask clients for this key (also from OUTRIDER_API_KEY, where others on this machine cannot see it).",
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        _server(
            "--api-keys",
            metavar="FILE",
            help="Named keys and what each may use, as docs/server.md says; read again when the file changes. "
            "Nothing is shared between names.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        _server(
            "--metrics-port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Also answer /metrics and /health on this port, without a key and with what was reused; let nobody "
            "near it whose requests are answered here.",
        ),
    ] = None,
    otlp_traces: Annotated[
        str | None,
        _server(
            "--otlp-traces",
            metavar="URL",
            help="Send a span for each request to this OpenTelemetry collector, as in http://localhost:4318/v1/traces "
            '(pip install "outrider[otel]").',
        ),
    ] = None,
    max_queue: Annotated[
        int, _server("--max-queue", min=0, metavar="N", help="Most answers waiting; beyond that clients get a 429.")
    ] = 64,
    max_connections: Annotated[
        int,
        _server("--max-connections", min=2, metavar="N", help="Most connections; one address may have half of them."),
    ] = 512,
    trusted_proxies: Annotated[
        list[str] | None,
        _server(
            "--trusted-proxies",
            metavar="ADDRESS",
            help="A proxy, or a network of them, that is believed whom it passes requests on for (X-Forwarded-For; may "
            "be given several times). Callers without a key of their own take turns by address.",
        ),
    ] = None,
    allowed_origins: Annotated[
        list[str] | None,
        _server(
            "--allowed-origins",
            metavar="ORIGIN",
            help="A site whose pages may use the server from browsers, as in https://app.example (CORS; may be given "
            "several times; * lets in every page).",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        _server(
            "--allow-host",
            metavar="NAME",
            help="Another name to answer to, as a proxy passes it on (may be given several times). On this machine "
            "alone the server answers to localhost and HOST only; elsewhere to any name, unless one is given here.",
        ),
    ] = None,
) -> None:
    """Serve MODEL to OpenAI's clients, with a playground at /; Ctrl-C lets running requests finish."""
    try:
        from outrider.server import run
        from outrider.server.app import make_app
        from outrider.server.backend import Backend
        from outrider.server.connections import ConnectionLimits, networks
        from outrider.server.files import affordable
        from outrider.server.hosts import names, origins
        from outrider.server.keys import KeyFile, OneKey, trust
        from outrider.server.logs import log_to_stderr
        from outrider.server.models import Models
        from outrider.server.restart import Past

        if otlp_traces:
            from outrider.server.tracing import exported_to
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("outrider"):
            raise
        extra = "otel" if (error.name or "").startswith("opentelemetry") else "serve"
        raise InvalidRequest(f'the server needs {error.name}; install it: pip install "outrider[{extra}]"') from error
    from outrider.cli.progress import RichProgress
    from outrider.llm import LLM

    if api_key and api_keys:
        raise InvalidRequest("api-keys: give either it or --api-key (OUTRIDER_API_KEY), not both")
    if api_key is None and not api_keys:
        api_key = os.environ.get("OUTRIDER_API_KEY")  # an empty one counts as none for the command line
    if api_key is not None and (not api_key or api_key != api_key.strip()):
        raise InvalidRequest("api-key: it is empty or has space around it; give a key, or none at all")
    keys = KeyFile(api_keys) if api_keys else OneKey(api_key) if api_key else None
    past = Past.of_process()
    listeners = list(past.listeners) or [run.listen(host, each) for each in (port, metrics_port) if each is not None]
    listener, *watched = listeners
    log_to_stderr()
    if host not in ("127.0.0.1", "localhost", "::1") and keys is None:
        note(f"{host} can be reached from other machines, and anybody there may use the model: think of --api-key")
    note(trust(keys))
    several = len(model) > 1

    def load(path: str) -> LLM:
        llm = LLM(
            path,
            drafter=drafter,
            also="available",
            draft_length="auto" if draft_length == "auto" else int(draft_length),
            dtype=dtype,
            device=device,
            threads=threads,
            bitwise=bitwise,
            max_batch=max_batch,
            max_context=max_context,
            kv_tokens=kv_tokens,
            gpu_memory=gpu_memory / len(model),
            remember=remember,
            progress=RichProgress(),
            quiet=models.quiet if several else None,
        )
        if not several:  # what is unloaded later must be freed
            keep_for_good()
        return llm

    paths = {_name(path): path for path in model}
    if len(paths) < len(model):
        raise InvalidRequest("model: several have the same name; clients could not tell them apart")
    models = Models(
        [Backend(name, partial(load, path), max_queue=max_queue) for name, path in paths.items()],
        idle=unload_after if several and unload_after else None,
    )

    def ready() -> None:
        address = f"http://{_shown(listener.getsockname()[0])}:{listener.getsockname()[1]}"
        key = " -H 'Authorization: Bearer KEY'" if keys else ""
        said = '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'
        served = f"{', '.join(models.names)} {'are' if several else 'is'} served at {address}"
        print(f"{served} (Ctrl-C ends it); playground: {address}/", file=sys.stderr)
        print(f"  curl -N {address}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{said}'",
              file=sys.stderr, flush=True)  # fmt: skip

    app = make_app(
        models,
        keys=keys,
        hosts=names(host, allow_host or ()),
        origins=origins(allowed_origins or ()),
        metrics_port=watched[0].getsockname()[1] if watched else None,
        restarts=len(past.begun),
        watchers=[exported_to(otlp_traces).ended] if otlp_traces else (),
    )
    if (connections := affordable(max_connections)) < max_connections:
        note(f"at most {connections} connections, not {max_connections}: no more files may be opened (ulimit -n)")
    limits = ConnectionLimits(
        connections=connections, per_address=connections // 2, proxies=networks(trusted_proxies or ())
    )
    try:
        run.serve(app, models, listeners, ready, limits)
    except run.Lost as lost:
        past.begin_anew(lost, lost.listeners)


def _name(model: str) -> str:
    """What clients call the model: never where it lies on this machine."""
    return Path(model).expanduser().resolve().stem if Path(model).expanduser().exists() else model


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
