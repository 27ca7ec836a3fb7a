"""The results file loads to an equal value, and any other file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.bench.report.results import BenchResults, load_results, require_writable, save_json
from pipeline.bench.report.summary import summarize
from pipeline.decoding.planning.cost import CostPoint
from pipeline.errors import UserError
from tests.command_line import exit_code
from tests.unit.bench.report.test_summary import record


def results() -> BenchResults:
    return BenchResults(
        manifest={"config": {"model": "m", "profile": "p"}, "env": {"cpu": "x"}},
        requests=[record("none"), record("trie", draft_tokens=4)],
        summary=[],
        cost_curve=[CostPoint(1, 1, 8, 0.01)],
    )


def test_saved_results_load_to_an_equal_value(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.json"
    save_json(path, results())
    assert load_results(path) == results()
    assert [entry.name for entry in path.parent.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{}", "manifest"),
        ("[]", "not a result of"),
        ("{nonsense", "not a result of"),
        ('{"manifest": {}, "requests": [], "summary": [], "extra": 1}', "extra"),
    ],
)
def test_another_file_is_refused_in_one_sentence_that_says_where(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "out.json"
    path.write_text(text)
    with pytest.raises(UserError, match=what) as raised:
        load_results(path)
    assert "out.json" in str(raised.value)


def test_missing_file_and_unwritable_folder_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        load_results(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save_json(tmp_path / "file" / "out.json", results())


def test_that_a_file_can_be_written_is_tried(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "out.json")
    assert not list((tmp_path / "new").iterdir())
    # A folder with permissions for root, in which no file can be created.
    with pytest.raises(UserError, match=r"/proc/out\.json cannot be written"):
        require_writable(Path("/proc/out.json"))
    with pytest.raises(UserError, match="it is a folder"):
        require_writable(tmp_path)
    with pytest.raises(UserError, match="a file named -"):
        require_writable(Path("-"))


def test_bench_and_report_do_not_write_over_their_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, saved = tmp_path / "prompts.jsonl", tmp_path / "results.json"
    prompts.write_text('{"id": "1", "task": "t", "prompt": "a"}\n', encoding="utf-8")
    save_json(saved, results())
    for path, arguments in (
        (prompts, ["bench", "--data", str(prompts), "--json", str(prompts)]),
        (saved, ["report", str(saved), "--html", str(saved)]),
        (saved, ["report", str(saved), "--markdown", str(saved)]),
    ):
        before = path.read_bytes()
        assert exit_code(*arguments) == 2
        assert f"{path.name} is the input" in " ".join(capsys.readouterr().err.split())
        assert path.read_bytes() == before


def test_a_report_does_not_write_two_formats_into_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_json(tmp_path / "results.json", results())
    assert (
        exit_code("report", str(tmp_path / "results.json"), "--html", f"{tmp_path}/a", "--markdown", f"{tmp_path}/./a")
        == 2
    )
    assert "Name two files" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "a").exists()


def test_a_report_takes_any_path_of_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    requests = [record("none"), record("trie", seconds=0.5)]
    save_json(
        tmp_path / "results.json", BenchResults(manifest={"config": {}}, requests=requests, summary=summarize(requests))
    )
    for path in ("plot", "."):
        assert exit_code("report", "results.json", "--svg", path) == 0
        assert (tmp_path / f"{path}-light.svg").is_file()
    before = sorted(tmp_path.iterdir())
    assert exit_code("report", "results.json", "--svg", "-") == 2
    assert sorted(tmp_path.iterdir()) == before
