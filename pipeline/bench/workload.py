"""Workloads: a JSON Lines file of prompts -> rows, and rows -> token ids.

A row is {"id", "task", "prompt"} or {"id", "task", "turns": [...]}; other keys are ignored. The file is checked whole
before anything is measured, so that a fault in its last line does not cost an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from jinja2 import TemplateError

from pipeline.bench.json_lines import json_rows, reading
from pipeline.bench.results import OVERALL
from pipeline.decoding.request import as_token_ids
from pipeline.decoding.tree import IntArray
from pipeline.errors import RequestError, UserError
from pipeline.serving.text_codec import check_text

Turns = Literal["first", "all"]
# A dozen short prompts for `lookahead verify`: several scripts, code, repetition.
DEFAULT_PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One entry of a data file. turns: what the user says, one entry per turn; at least one."""

    row_id: str
    task: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked. messages: user, assistant, user, ... in turn. They go through the tokenizer's own chat template
    with its default system message; raw: the texts as they are, one behind the other."""

    messages: tuple[str, ...]
    raw: bool = False


class NamedPrompt(NamedTuple):
    """A prompt as token ids [prompt_len], with the id of its row and what it came from."""

    prompt_id: str
    prompt_ids: IntArray
    prompt: Prompt


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...


def load_workload(path: Path, limit: int | None = None, tasks: Iterable[str] | None = None) -> list[WorkloadRow]:
    """Rows in file order. limit: the first so many of each file (after `tasks`, the tasks to keep). Raises UserError,
    naming the line, for the first fault."""
    if not path.exists():
        raise UserError(f"There is no data file {path}; give a JSON Lines file with --data.")
    rows: list[WorkloadRow] = []
    seen: dict[str, str] = {}
    with reading(path), path.open(encoding="utf-8") as file:
        for where, value in json_rows(file, path):
            row = _row_of(value, where)
            if row.row_id in seen:
                raise UserError(f"{where}: the id {row.row_id!r} is taken by {seen[row.row_id]}; give each its own.")
            seen[row.row_id] = where
            rows.append(row)
    if tasks is not None:
        wanted = set(tasks)
        unknown = sorted(wanted - {row.task for row in rows})
        if unknown:
            raise UserError(
                f"{path} has no task {unknown[0]!r}; it has {', '.join(sorted({row.task for row in rows}))}."
            )
        rows = [row for row in rows if row.task in wanted]
    if not rows:
        raise UserError(f"{path} holds no rows; each line should be a JSON object with id, task and prompt (or turns).")
    return rows[:limit]


def _row_of(data: Any, where: str) -> WorkloadRow:
    if not isinstance(data, dict):
        raise UserError(f"{where} should be a JSON object with id, task and prompt; found a {type(data).__name__}.")
    row_id = data.get("id")
    if not isinstance(row_id, str | int) or isinstance(row_id, bool) or row_id == "":
        raise UserError(f"{where}: key 'id' should be a text or a number; found {row_id!r}.")
    task = data.get("task", "default")
    if not isinstance(task, str) or not task:
        raise UserError(f"{where}: key 'task' should be a text; found {task!r}.")
    if task == OVERALL:
        raise UserError(f"{where}: key 'task' is {task!r}, the name of the total over all tasks; give it another.")
    if ("prompt" in data) == ("turns" in data):
        raise UserError(
            f"{where} should have either 'prompt' or 'turns'; it has {'both' if 'prompt' in data else 'none'}."
        )
    key, right = ("prompt", "a text") if "prompt" in data else ("turns", "a list of texts")
    turns = [data["prompt"]] if "prompt" in data else data["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise UserError(f"{where}: key '{key}' should be {right}, not empty; found {str(data[key])[:60]!r}.")
    for name, value in (("id", str(row_id)), ("task", task), *((key, turn) for turn in turns)):
        check_text(value, f"{where}: key '{name}'")
    return WorkloadRow(str(row_id), task, tuple(turns))


def prompt_ids_of(tokenizer: Tokenizer, prompt: Prompt) -> IntArray:
    """[prompt_len] token ids of a prompt. Special tokens are added to raw text only: a template writes its own."""
    return as_token_ids(tokenizer.encode(_text_of(tokenizer, prompt), add_special_tokens=prompt.raw))


def _text_of(tokenizer: Tokenizer, prompt: Prompt) -> str:
    if prompt.raw:
        return "".join(prompt.messages)
    try:
        text: str = tokenizer.apply_chat_template(conversation_of(prompt), tokenize=False, add_generation_prompt=True)
    except (ValueError, TemplateError) as error:
        raise RequestError(
            f"The prompt cannot be put through a chat template ({' '.join(str(error).split())}); use --raw."
        ) from error
    return text


def first_prompts(tokenizer: Tokenizer, rows: Sequence[WorkloadRow], raw: bool) -> list[NamedPrompt]:
    """The first turn of each row."""
    prompts = [Prompt(row.turns[:1], raw) for row in rows]
    return [
        NamedPrompt(row.row_id, prompt_ids_of(tokenizer, prompt), prompt)
        for row, prompt in zip(rows, prompts, strict=True)
    ]


def conversation_of(prompt: Prompt) -> list[dict[str, str]]:
    """The messages as chat templates and servers take them."""
    return [
        {"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(prompt.messages)
    ]
