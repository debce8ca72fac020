"""Documents that name code are compared with it, and the words of new text with the rules."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


documents, words = loaded("check_documents"), loaded("check_words")
PATTERN = words.Words(words.pattern(["behind", "at once", "who asks"]), words.pattern(["our"]))


def test_the_documents_for_a_first_reading_are_short() -> None:
    """README and performance have at most 120 lines, the change log 60 of at most 200 characters."""
    assert documents.LINES == {"README.md": 120, "docs/explanation/performance.md": 120, "CHANGELOG.md": 60}
    assert documents.too_long(documents.LINES, documents.WORDS) == []
    found = documents.too_long({"README.md": 3}, 100)
    assert re.fullmatch(r"README.md: \d+ lines, at most 3", found[0])
    assert re.fullmatch(
        r"mkdocs.yml: \d\d,\d{3} words for users, at most 100 \(reference/events.md [\d,]+, .+\)", found[1])
    assert len(found) == 2


def test_words_of_the_users_navigation() -> None:
    assert documents.count_words("| `a b` | -- 2 |\n\n* é — ...") == 4
    pages = documents.users_pages()
    assert pages[0] == "index.md"
    assert "reference/events.md" in pages
    assert not [page for page in pages if page.startswith("contributing/")]


@pytest.mark.parametrize("name", [
    "store.commit_log", "store.commit_log.CommitLog", "store.append.Appender.append",
    "store.recovery.start.RecoveryStart.decide", "store.recovery.passes.Recovery.run",
    "store.append.Appender.queue_offsets", "node.message_store.MessageStore.open",
    "store.recovery", "java_settings.REASONS", "store.retention.disk_state.DiskLevels",
    # Inherited, and of an instance.
    "node.topic_config.TopicConfigManager.persist", "node.topic_config.TopicConfigManager.table",
])
def test_a_name_of_code_is_found(name: str) -> None:
    assert documents.exists(name)
    assert documents.missing_names(f"see `{name}` and `{name}()`") == []


@pytest.mark.parametrize("text", [
    "`store.commit_logs`", "`store.commit_log.CommitLogs`", "`store.append.Appender.appends`",
    "`store.commit_log.struct`", "`tests/unit/test_none.py`",
    "`tests/unit/test_document_tools.py::test_none`",
])
def test_a_name_that_does_not_exist_is_reported(text: str) -> None:
    assert documents.missing_names(f"see {text}.") == [text.strip("`")]


def test_java_names_settings_and_paths_are_not_looked_up() -> None:
    text = "`CommitLog.append`, `retention.ms`, `tailrace.example`, `config/topics.json`"
    assert documents.missing_names(text) == []
    assert documents.missing_paths("`store/flush.py`, `tests/conftest.py`, `store/none.py`") == ["store/none.py"]


def test_labels_are_read_from_comments_and_docstrings_alone() -> None:
    text = documents.comments_of('"""About L2."""\nT1 = "T2"  # not before M3\n')
    assert sorted(documents._LABEL.findall(text)) == ["L2", "M3"]


def test_a_label_without_a_row_and_a_row_without_a_use_are_reported() -> None:
    rules, weaknesses = documents.RULES.read_text(), documents.WEAKNESSES.read_text()
    assert documents.label_problems(rules, weaknesses) == []
    found = documents.label_problems(rules.replace("| TR2 |", "| TR9 |"), weaknesses)
    assert "src/tailrace/store/retention/trash.py: TR2 is in neither rules.md nor beyond-the-reference.md" in found
    assert "rules.md: no text uses TR9" in found
    assert documents.label_problems(rules.replace("| TR2 |", "| TR1 |"), weaknesses)[0] == "TR1 has two rows"


def test_phrases_are_those_of_the_rules() -> None:
    rules = words.WRITING.read_text()
    everywhere, users = words.phrases(rules, "Words"), words.phrases(rules, "Words in texts for users")
    assert {"behind", "at once", "who asks", "comes again", "goes on", "also if", "what waits"} <= set(everywhere)
    assert {"the reference", "we", "our", "ours"} <= set(users)
    assert len(everywhere) > 60
    assert not set(everywhere) & set(users)


def test_comments_docstrings_and_messages_are_searched(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text('"""All at\nonce."""\nbehind = 1  # what is behind it\nlog("WHO ASKS")\n# all at\n# once\n')
    assert words.search(path, PATTERN) == [(1, "at once"), (3, "behind"), (5, "at once")]
    assert list(words._python('log("who asks")\nname("behind")\n', messages=True))[1:] == [(1, "who asks")]


def test_comments_of_lines_that_follow_are_one_text() -> None:
    text = "#: one\n# two\nx = 1  # three\n    # four\n# five\n"
    assert list(words._comments(text))[1:] == [(1, ": one\n two"), (3, " three"), (4, " four"), (5, " five")]


def test_code_in_documents_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("`behind`\n```\nbehind\n```\nIt is behind, beHind\nall at\nonce.\n")
    assert words.search(path, PATTERN) == [(5, "beHind"), (5, "behind"), (6, "at once")]
    path.write_text(f"{words.sample_sentences.GENERATED} from the code. -->\nbehind\n")
    assert words.search(path, PATTERN) == []


@pytest.mark.parametrize(("text", "found"), [
    ("It holds, too.", [(1, ", too")]), ("It holds, too, if.", [(1, ", too")]), ("a, too\n\nb", [(1, ", too")]),
    ("It is late, too late.", []), ("Lines, too many of them.", []),
    ("Done. What is left is deleted.", [(1, "What is left is deleted.")]),
    ("Done.\nWhat grew is kept.", [(2, "What grew is kept.")]),
    ("# What is kept\n\nWhat is kept stays.", [(3, "What is kept stays.")]),
    ("- What is kept stays.\n- What is kept?", []), ("a\n- What is kept stays.", [(2, "What is kept stays.")]),
    ("Done. What is kept?", []), ("# What is kept\n", []), ("| What is kept | no |", []), ("a. What to do: b.", []),
    ("# A\n\nAfter reading this page you can.", [(3, "first sentence: After reading this page you ca")]),
    ("# A\n\nSend messages. After reading this, rest.", []),
    ("one " * 30 + "one.", [(1, "a sentence of 31 words")]), ("one " * 29 + "one.", []),
    ("one " * 30 + ": two " * 25, []), ("| " + "one " * 31 + "|", []), ("- `one two` " + "one " * 29, []),
])
def test_patterns_of_a_document(text: str, found: list[tuple[int, str]], tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    assert words.search(path, PATTERN) == found


@pytest.mark.parametrize(("name", "users"), [
    ("README.md", True), ("docs/start/faq.md", True), ("src/tailrace/errors.py", True), ("deploy/ready.py", True),
    ("docs/contributing/release.md", False), ("tests/conftest.py", False), ("CONTRIBUTING.md", False),
])
def test_words_for_users_are_refused_in_texts_for_users(name: str, users: bool) -> None:
    assert words.for_users(ROOT / name) is users


def test_words_for_users_are_searched_there_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "docs" / "contributing").mkdir(parents=True)
    for folder, found in (("docs", [(1, "our")]), ("docs/contributing", [])):
        path = tmp_path / folder / "page.md"
        path.write_text("our broker")
        assert words.search(path, PATTERN) == found


def test_a_seed_draws_sentences_of_prose(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sample = words.sample_sentences
    text = (
        "# A title of a page\n\nFirst sentence, e.g. with [a link](b.md) in it. Second `code of it. Yes` is\nlong."
        "\n\n| a | b |\n\n- an item: its list\n- another\n  ```\n  code\n  ```\n")
    assert list(sample.sentences(text)) == [
        (3, "First sentence, e.g. with a link in it."), (3, "Second `code of it. Yes` is long."),
        (8, "an item: its list"), (9, "another")]
    assert sample.words("Second `code of it. Yes` is long - 2.") == 5
    assert not [path for path in sample.pages() if "contributing" in path.parts]
    path = ROOT / "docs" / "start" / "faq.md"
    drawn = []
    for _ in range(2):
        assert sample.main(["3", "5", str(path)]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1]
    assert drawn[0].count("docs/start/faq.md:") == 5


def test_the_number_of_a_file_may_only_fall() -> None:
    place = (3, "behind")
    assert words.compare({"a": [place], "b": []}, {"a": 1}) == []
    more, = words.compare({"a": [place, (9, "at once")]}, {"a": 1})
    assert more.startswith("a: 2 places that docs/contributing/writing.md refuses, 1 are allowed (3: behind,")
    fewer, = words.compare({"a": []}, {"a": 1})
    assert fewer.endswith("1 are allowed, run tools/check_words.py --update")
