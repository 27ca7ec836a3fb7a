"""The commands that call the running server: generate, chat, demo, batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.cli import continue_after, output
from pipeline.cli.options import DEFAULT_MODEL, DEFAULT_PROFILE, Json, Model, Profile, Set, input_path, resolve
from pipeline.config.folders import folders
from pipeline.errors import RequestError

if TYPE_CHECKING:
    from pipeline.server.client import Completion, TextQuery


Strategy = Annotated[
    str | None,
    typer.Option("--strategy", "-s", help="none, lookahead, trie, hybrid or auto; default: the profile's."),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Maximum number of tokens to generate.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", help="Sampling temperature; default: 0, which is greedy decoding.")
]
TopK = Annotated[int | None, typer.Option("--top-k", help="Number of most probable tokens to sample from.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Total probability of the tokens to sample from.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Sampling seed. The same seed gives the same text.")]
System = Annotated[str | None, typer.Option("--system", help="System prompt for the chat template.")]
Transport = Annotated[
    Literal["grpc", "http"] | None,
    typer.Option("--protocol", help="grpc or http; default: http for an http URL, else grpc."),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="host:port (gRPC) or http://host:port; default: the server that `lookahead serve` started."
    ),
]


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Prompt; default, or -: standard input.")] = None,
    max_tokens: MaxTokens = 128,
    strategy: Strategy = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    stop_words: Annotated[
        list[str] | None, typer.Option("--stop", help="Stop word: the output ends before it. Repeatable.")
    ] = None,
    chat_template: Annotated[
        bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")
    ] = False,
    system: System = None,
    protocol: Transport = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Send one prompt to the running server and print the text as it arrives."""
    from pipeline.server.client import TextQuery

    if system is not None and not chat_template:
        raise RequestError("--system needs --chat, because only the chat template has a system prompt.")
    query = TextQuery(
        text_input=_piped_text() if prompt in (None, "-") else prompt,
        max_tokens=max_tokens,
        strategy=strategy,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_words=stop_words or None,
        use_chat_template=chat_template or None,
        system_prompt=system,
        return_statistics=True,
    )
    completion = _show(query, *_address(url, protocol), [], quiet=as_json)
    if as_json:
        output.print_json(
            {"text": completion.text, "finish_reason": completion.finish_reason, "statistics": completion.statistics}
        )
    else:
        output.note(_summary(completion))


def chat(
    max_tokens: MaxTokens = 256,
    strategy: Strategy = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    system: System = None,
    protocol: Transport = None,
    url: Url = None,
) -> None:
    """Chat with the running server. Ctrl-C stops a reply; an empty line or Ctrl-D ends the chat."""
    from pipeline.server.client import TextQuery

    address = _address(url, protocol)
    messages = [] if system is None else [{"role": "system", "content": system}]
    while line := _next_line():
        messages.append({"role": "user", "content": line})
        query = TextQuery(
            text_input=line,
            max_tokens=max_tokens,
            strategy=strategy,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            messages=json.dumps(messages),
            return_statistics=True,
        )
        parts: list[str] = []
        try:
            output.note(_summary(_show(query, *address, parts)))
        except KeyboardInterrupt as interrupt:
            if not sys.stdin.isatty():
                raise
            continue_after(interrupt)
            output.note("stopped; an empty line ends the chat")
        messages.append({"role": "assistant", "content": "".join(parts)})


def demo(
    model: Model = DEFAULT_MODEL,
    profile: Profile = DEFAULT_PROFILE,
    overrides: Set = None,
    max_tokens: MaxTokens = 96,
) -> None:
    """Build, serve, query over gRPC and HTTP, compare the speed with and without drafts, and stop the server."""
    from pipeline.cli.demo import run_demo

    ports = [f"server.{name}_port=0" for name in ("http", "grpc", "metrics")]
    run_demo(resolve(model, profile, [*ports, *(overrides or [])]), folders(), max_tokens)


def batch(
    requests: Annotated[
        Path,
        typer.Argument(
            help="OpenAI batch file: JSON lines with custom_id, url and body; - is standard input.", parser=input_path
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Results as JSON lines, in the order of the requests.")],
    url: Annotated[
        str | None, typer.Option("--url", help="Base URL of an OpenAI API; default: that of `lookahead serve`.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=1024, help="Concurrent requests.")] = 16,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, max=1e6, help="Time limit of a request, in seconds.")
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """Send a file of requests to the OpenAI API, several at a time. After an interruption the same command continues.

    A failed request is in the output with its error, and the exit code is 1. The API key is LOOKAHEAD_API_KEY, else
    OPENAI_API_KEY.
    """
    from pipeline.bench.report.results import require_writable
    from pipeline.dynamo.openai_batch import GRACE_S, failure_text, journal_path, read_batch, read_journal, run_batch
    from pipeline.files import is_stream
    from pipeline.server.client import KEY_VARIABLE, api_key

    asked = read_batch(requests)
    if is_stream(out):
        raise RequestError(f"--out is {out}, and the journal of finished requests is beside the output; name a file.")
    for path in (out, journal_path(out)):
        require_writable(path, requests)
    journal = read_journal(out)
    if known := sum(request.digest in journal for request in asked):
        output.note(f"{known} requests are done already ({journal_path(out)})")
    with output.steps("answering", len(asked) - known) as step:
        failed = run_batch(
            asked,
            out,
            _openai_url() if url is None else url,
            api_key=api_key(names=(KEY_VARIABLE, "OPENAI_API_KEY")),
            concurrency=concurrency,
            timeout_s=timeout_s,
            on_done=step,
            on_interrupt=lambda: output.note(
                f"waiting up to {GRACE_S:.0f} s for the running requests; the same command continues with the others"
            ),
        )
    if as_json:
        output.print_json({"out": str(out), "requests": len(asked), "failed": len(failed)})
    else:
        output.say(f"{out}: {len(asked)} requests, {len(failed)} failed")
    if failed:
        output.note(f"the first failed request: {failure_text(failed[0])}")
        raise typer.Exit(1)


def _next_line() -> str:
    """The user's next message; empty at the end of the input. A pipe gets no prompt."""
    on_terminal = sys.stdin.isatty()
    try:
        return input("you> " if on_terminal else "").strip()
    except EOFError:
        if on_terminal:
            output.say("")
        return ""
    except UnicodeDecodeError as error:
        raise _not_text(error) from error


def _piped_text() -> str:
    """Standard input without the line end that `echo` and editors add."""
    if sys.stdin.isatty():
        output.note("reading the prompt from this terminal; Ctrl-D on an empty line ends it")
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise _not_text(error) from error


def _not_text(error: UnicodeDecodeError) -> RequestError:
    return RequestError(f"Standard input is not UTF-8 text ({error}); convert it first.")


def _show(
    query: TextQuery, url: str, protocol: Literal["grpc", "http"], parts: list[str], quiet: bool = False
) -> Completion:
    """Send a query, and print its text as it arrives unless `quiet`. parts: gets the text that has arrived, also before
    an error."""
    from pipeline.server.client import complete

    def show(text: str) -> None:
        parts.append(text)
        if not quiet:
            output.write(text)

    try:
        return complete(query, url, protocol, on_text=show)
    finally:
        if any(parts) and not quiet:  # a message after an error begins on its own line, too
            output.write("\n")


def _summary(completion: Completion) -> str:
    statistics = completion.statistics or {}
    tokens = len(statistics.get("output_ids", ()))
    return (
        f"{tokens} tokens in {completion.total_s:.2f} s ({tokens / completion.total_s:.1f} tokens/s), "
        f"{statistics.get('mean_acceptance_length', 1.0):.2f} tokens per step, finish reason {completion.finish_reason}"
    )


def _address(url: str | None, protocol: Literal["grpc", "http"] | None) -> tuple[str, Literal["grpc", "http"]]:
    """The URL and the protocol of the options; both may be left out."""
    is_http = url is not None and url.startswith(("http://", "https://"))
    if is_http and protocol == "grpc":
        raise RequestError(f"--protocol grpc takes a --url such as localhost:8001; found {url}.")
    protocol = protocol or ("http" if is_http else "grpc")
    if url is not None:
        return (url if is_http or protocol == "grpc" else f"http://{url}").rstrip("/"), protocol
    from pipeline.server.run_folders import run_dir
    from pipeline.server.state import require_server

    state = require_server(run_dir(folders()), takes_url=True)
    return (state.grpc_url if protocol == "grpc" else state.http_url), protocol


def _openai_url() -> str:
    from pipeline.dynamo.fleet import openai_url
    from pipeline.errors import ServerError
    from pipeline.server.run_folders import run_dir

    if (url := openai_url(run_dir(folders()))) is None:
        raise ServerError("No OpenAI API is running. Start one with `lookahead serve --background`, or name it: --url.")
    return url
