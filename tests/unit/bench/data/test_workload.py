"""Data files are read completely and checked before a measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from pipeline.bench.data.workload import Prompt, WorkloadRow, load_workload, prompt_ids_of
from pipeline.errors import RequestError, UserError
from pipeline.triton_models.text_codec import TextCodec


class FakeTokenizer:
    """One token per character; a template that names the roles; 1 is the special first token."""

    added_tokens_decoder: ClassVar[dict[int, object]] = {}

    def __init__(self, chat_template: str | None = "named roles") -> None:
        self.chat_template = chat_template

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        turns = "".join(f"<{turn['role'][0]}>{turn['content']}" for turn in conversation)
        return "S" + turns + "<a>" * add_generation_prompt

    def decode(self, ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        return "".join(chr(token) for token in ids if token != 1)


def fake_codec(tokenizer: FakeTokenizer | None = None) -> TextCodec:
    return TextCodec(tokenizer or FakeTokenizer(), frozenset({2}), 1 << 20)


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_prompt_and_turns_rows_are_read_in_file_order_and_other_keys_ignored(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"id": 7, "task": "a", "prompt": "one\u2028line", "answer": 3}',
        "",
        '{"id": "x", "task": "b", "turns": ["first", "second"]}',
    )
    rows = load_workload(path)
    assert [(row.row_id, row.task, row.turns) for row in rows] == [
        ("7", "a", ("one\u2028line",)),
        ("x", "b", ("first", "second")),
    ]


def test_rows_of_public_data_sets_are_read_as_they_are(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '\ufeff{"task_id": "HumanEval/0", "prompt": "def f():", "entry_point": "f", "test": ""}\r',
        '{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}',
        '{"question": "How many?", "answer": "#### 72"}',
        '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, '
        '{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]}',
    )
    assert load_workload(path) == [
        WorkloadRow("HumanEval/0", "default", ("def f():",)),
        WorkloadRow("81", "writing", ("Write.", "Again.")),
        WorkloadRow("3", "default", ("How many?",)),
        WorkloadRow("4", "default", ("Hi", "Bye"), "Be brief."),
    ]


def test_each_line_of_a_text_file_is_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffTell a story.\r\n\r\nWhat is é?".encode())
    assert [(row.row_id, row.turns) for row in load_workload(path)] == [
        ("1", ("Tell a story.",)),
        ("2", ("What is é?",)),
    ]


def test_a_system_message_goes_in_front(tmp_path: Path) -> None:
    row = WorkloadRow("a", "t", ("hi", "more"), "brief")
    codec = fake_codec()
    assert codec.decode(prompt_ids_of(codec, row.first_prompt(raw=False)).tolist()) == "S<s>brief<u>hi<a>"
    assert codec.decode(prompt_ids_of(codec, row.first_prompt(raw=True)).tolist()) == "briefhi"


def test_limit_counts_rows_after_the_choice_of_tasks(tmp_path: Path) -> None:
    lines = [json.dumps({"id": i, "task": "ab"[i % 2], "prompt": "p"}) for i in range(10)]
    rows = load_workload(write(tmp_path, *lines), limit=3, tasks=["b"])
    assert [row.row_id for row in rows] == ["1", "3", "5"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "should be a JSON object"),
        ('{"id": "b", "task": "t"}', "one of prompt, turns, question, messages; it has none"),
        ('{"id": "b", "task": "t", "prompt": "p", "turns": ["p"]}', "it has prompt and turns"),
        ('{"id": "b", "question": 3}', "key 'question' should be a text"),
        ('{"id": "b", "messages": "hi"}', "key 'messages' should be a list"),
        ('{"id": "b", "messages": [{"role": "tool", "content": "x"}]}', "key 'messages'"),
        ('{"id": "b", "messages": [{"role": "assistant", "content": "x"}]}', "key 'messages'"),
        ('{"id": "b", "messages": [{"role": "user", "content": [1]}]}', "key 'messages'"),
        (
            '{"id": "b", "messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}',
            "'messages'",
        ),
        ('{"id": "b", "task": "t", "prompt": ""}', "key 'prompt'"),
        ('{"id": "b", "task": "t", "prompt": ["p"]}', "key 'prompt'"),
        ('{"id": "b", "task": "t", "turns": []}', "key 'turns'"),
        ('{"id": "b", "task": "t", "turns": "text"}', "key 'turns'"),
        ('{"id": "b", "task": 3, "prompt": "p"}', "key 'task'"),
        ('{"id": "b", "task": "overall", "prompt": "p"}', "the task 'overall' has the name of the total"),
        ('{"id": "b", "prompt": "p \\ud800"}', "key 'prompt' holds '\\ud800', half of a surrogate pair"),
        ('{"id": "b", "turns": ["p", "\\udc00"]}', "key 'turns' holds '\\udc00'"),
        ('{"id": "\\ud800", "prompt": "p"}', "key 'id' holds"),
        ('{"id": null, "prompt": "p"}', "key 'id'"),
        ('{"question_id": [1], "prompt": "p"}', "key 'question_id'"),
        ('{"id": true, "prompt": "p"}', "key 'id'"),
        ('{"id": "a", "prompt": "again"}', "is taken by"),
        ("[" * 100_000, "nested too deeply"),
        (f'{{"id": {"9" * 5000}}}', "too many digits"),
    ],
)
def test_a_fault_is_one_sentence_with_its_line_number(tmp_path: Path, line: str, what: str) -> None:
    path = write(tmp_path, '{"id": "a", "task": "t", "prompt": "p"}', line)
    with pytest.raises(UserError, match="line 2") as raised:
        load_workload(path, limit=1)
    assert what in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_empty_and_wrong_task_files_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data file"):
        load_workload(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="has no rows"):
        load_workload(write(tmp_path, ""))
    with pytest.raises(UserError, match="has no task 'c'; it has t"):
        load_workload(write(tmp_path, '{"id": 1, "task": "t", "prompt": "p"}'), tasks=["c"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe{")
    with pytest.raises(UserError, match="cannot be read"):
        load_workload(tmp_path / "binary")


def test_prompts_go_through_the_template_without_a_second_special_token() -> None:
    ids = prompt_ids_of(fake_codec(), Prompt(("hi", "yes", "so")))
    assert fake_codec().decode(ids.tolist()) == "S<u>hi<a>yes<u>so<a>"
    assert ids[0] != 1


def test_raw_prompts_are_the_bare_text_with_the_tokenizers_own_special_tokens() -> None:
    ids = prompt_ids_of(fake_codec(), Prompt(("h", "i"), raw=True))
    assert ids.tolist() == [1, ord("h"), ord("i")]


def test_a_tokenizer_without_template_is_a_request_error_that_names_raw() -> None:
    with pytest.raises(RequestError, match="--raw"):
        prompt_ids_of(fake_codec(FakeTokenizer(chat_template=None)), Prompt(("hi",)))


def test_the_shipped_verify_prompts_are_a_valid_workload_with_scripts_code_and_repetition() -> None:
    import pipeline.bench

    rows = load_workload(Path(pipeline.bench.__file__).parent / "data" / "prompts.jsonl")
    assert len(rows) >= 12
    assert {"code", "repetition", "scripts"} <= {row.task for row in rows}
    assert any(ord(letter) > 0xFFFF for row in rows for letter in row.turns[0])
