"""Workloads: a file of prompts -> rows, and rows -> token ids.

A row of a JSON Lines file is {"id", "task", "prompt"} or {"id", "task", "turns": [...]}, or has the keys of a public
data set; see `KEYS`. Other keys are ignored. In a .txt file every line is a prompt. The whole file is checked before
the measurement starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipeline.bench.report.results import OVERALL
from pipeline.decoding.grammar.guide import Guide
from pipeline.decoding.tree import IntArray
from pipeline.errors import RequestError, UserError
from pipeline.json_lines import json_rows, reading
from pipeline.triton_models.text_codec import TextCodec, check_text

Turns = Literal["first", "all"]
# A dozen short prompts for `lookahead verify`: several scripts, code, repetition.
DEFAULT_PROMPTS = Path(__file__).with_name("prompts.jsonl")

# Accepted keys of a row's parts, in order of preference: our own, and those of HumanEval, MBPP, Spec-Bench, MT-bench
# and GSM8K.
KEYS = {"id": ("id", "task_id", "question_id"), "task": ("task", "category")}
# A row has exactly one of these for the prompt. The user's messages are the turns; other answers are ignored.
_ASKING = ("prompt", "turns", "question", "messages")


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One row of a data file. turns: the user's messages, at least one. system: system message, may be empty. guide:
    format that outputs must match, if any."""

    row_id: str
    task: str
    turns: tuple[str, ...]
    system: str = ""
    guide: Guide | None = None

    def asked(self, turns: Turns) -> tuple[str, ...]:
        """The messages that are sent."""
        return self.turns if turns == "all" else self.turns[:1]

    def first_prompt(self, raw: bool) -> Prompt:
        return Prompt(self.turns[:1], raw, self.system)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt. messages: of user and assistant in turn, for the tokenizer's chat template. raw: concatenate the texts
    without a template. system: system message; if empty, the template's default applies."""

    messages: tuple[str, ...]
    raw: bool = False
    system: str = ""

    @property
    def raw_text(self) -> str:
        return self.system + "".join(self.messages)


class NamedPrompt(NamedTuple):
    """A prompt with its token ids [prompt_len] and the id of its row."""

    prompt_id: str
    prompt_ids: IntArray
    prompt: Prompt


def load_workload(
    path: Path,
    limit: int | None = None,
    tasks: Iterable[str] | None = None,
    row_of: Callable[[Any, str, int], WorkloadRow] | None = None,
) -> list[WorkloadRow]:
    """Read the rows of a file in order. tasks: keep only rows of these. limit: maximum number of these rows. row_of:
    makes a row from a JSON value, "FILE, line N" and the number of the row; None for rows of prompts. Raises UserError
    with the line of the first fault."""
    if not path.exists():
        raise UserError(f"There is no data file {path}; give a JSON Lines file, or a .txt with a prompt per line.")
    rows: list[WorkloadRow] = []
    seen: dict[str, str] = {}
    with reading(path), path.open(encoding="utf-8") as file:
        values = _lines_as_rows(file, path) if path.suffix == ".txt" else json_rows(file, path)
        for number, (where, value) in enumerate(values, 1):
            row = (row_of or _row_of)(value, where, number)
            if row.task == OVERALL:
                raise UserError(f"{where}: the task {OVERALL!r} has the name of the total over all tasks; rename it.")
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
        raise UserError(f"{path} has no rows; each line should be a JSON object with id, task and prompt (or turns).")
    return rows[:limit]


def _lines_as_rows(lines: Iterable[str], path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, 1):
        if text := line.removeprefix("\ufeff").strip():
            yield f"{path}, line {number}", {"prompt": text}


def _row_of(data: Any, where: str, number: int) -> WorkloadRow:
    """Check one row of a data file. where: its place, for messages. number: its number, the default of its id."""
    if not isinstance(data, dict):
        raise UserError(f"{where} should be a JSON object with id, task and prompt; found a {type(data).__name__}.")
    id_key, task_key = (next((key for key in KEYS[part] if key in data), part) for part in ("id", "task"))
    row_id = data.get(id_key, number)
    if not isinstance(row_id, str | int) or isinstance(row_id, bool) or row_id == "":
        raise UserError(f"{where}: key '{id_key}' should be a text or a number; found {row_id!r}.")
    task = data.get(task_key, "default")
    if not isinstance(task, str) or not task:
        raise UserError(f"{where}: key '{task_key}' should be a text; found {task!r}.")
    asking = [key for key in _ASKING if key in data]
    if len(asking) != 1:
        raise UserError(f"{where} should have one of {', '.join(_ASKING)}; it has {' and '.join(asking) or 'none'}.")
    (key,) = asking
    system, turns = _turns_of(data[key], key, where)
    for name, value in ((id_key, str(row_id)), (task_key, task), (key, system), *((key, turn) for turn in turns)):
        check_text(value, f"{where}: key '{name}'")
    return WorkloadRow(str(row_id), task, tuple(turns), system)


def _turns_of(value: Any, key: str, where: str) -> tuple[str, list[str]]:
    """The system message (may be empty) and the user's messages."""
    system, turns, right = [], value if key == "turns" else [value], "a list of texts" if key == "turns" else "a text"
    if key == "messages":
        right = 'a list of {"role": "user" or "assistant", "content": "..."}, the first one\'s role perhaps "system"'
        messages = value if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else []
        pairs = [(message.get("role"), message.get("content")) for message in messages]
        system = [content for role, content in pairs[:1] if role == "system"]
        roles_are_known = all(role in ("user", "assistant") for role, _ in pairs[len(system) :])
        turns = [content for role, content in pairs if role == "user"] if roles_are_known else []
    if not isinstance(turns, list) or not turns or not all(isinstance(text, str) and text for text in system + turns):
        raise UserError(f"{where}: key '{key}' should be {right}, not empty; found {str(value)[:60]!r}.")
    return "".join(system), turns


def prompt_ids_of(codec: TextCodec, prompt: Prompt) -> IntArray:
    """[prompt_len] token ids of a prompt. Special tokens are added to raw text only; a template contains its own.
    Raises RequestError if the chat template fails."""
    if prompt.raw:
        return codec.encode(prompt.raw_text)
    try:
        text = codec.chat_text(conversation_of(prompt))
    except RequestError as error:
        raise RequestError(
            f"The chat template rejects the prompt ({' '.join(str(error).split())}); use --raw."
        ) from error
    return codec.encode(text, add_special_tokens=False)


def first_prompts(codec: TextCodec, rows: Sequence[WorkloadRow], raw: bool) -> list[NamedPrompt]:
    """The prompt of each row's first turn. raw: without a chat template. Raises as `prompt_ids_of` does."""
    prompts = {row.row_id: row.first_prompt(raw) for row in rows}
    return [NamedPrompt(row_id, prompt_ids_of(codec, prompt), prompt) for row_id, prompt in prompts.items()]


def output_text(codec: TextCodec, output_ids: Sequence[int]) -> str:
    """The text of an output, without its end token."""
    ended = bool(output_ids) and output_ids[-1] in codec.end_ids
    return codec.decode(output_ids[:-1] if ended else output_ids)


def conversation_of(prompt: Prompt) -> list[dict[str, str]]:
    """The messages as role and content, for chat templates and servers."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return system + [
        {"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(prompt.messages)
    ]
