"""Documents that name code are compared with it, and the words of new text with the glossary."""

from __future__ import annotations

import importlib.util
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
PATTERN = words.pattern(["behind", "at once", "who asks"])


def test_every_name_in_the_documents_exists() -> None:
    assert documents.problems() == []


@pytest.mark.parametrize("name", [
    "store.commit_log", "store.commit_log.CommitLog", "store.commit_log.CommitLog.append",
    "store.recovery.start.RecoveryStart.decide", "store.recovery.passes.Recovery.run",
    "kernels.appender.Appender.queue_offsets", "node.message_store.MessageStore.open",
    "store.recovery", "java_settings.REASONS", "store.retention.disk_state.DiskLevels",
    # Inherited, and of an instance.
    "node.topic_config.TopicConfigManager.persist", "node.topic_config.TopicConfigManager.table",
])
def test_a_name_of_code_is_found(name: str) -> None:
    assert documents.exists(name)
    assert documents.missing_names(f"see `{name}` and `{name}()`") == []


@pytest.mark.parametrize("text", [
    "`store.commit_logs`", "`store.commit_log.CommitLogs`", "`store.commit_log.CommitLog.appends`",
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


def test_phrases_are_those_of_the_glossary() -> None:
    found = words.phrases((ROOT / "docs" / "reference" / "glossary.md").read_text())
    assert {"behind", "at once", "who asks"} <= set(found)
    assert len(found) > 30


def test_comments_docstrings_and_messages_are_searched(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text('"""All at\nonce."""\nbehind = 1  # what is behind it\nlog("WHO ASKS")\n')
    assert words.search(path, PATTERN) == [(1, "at once"), (3, "behind")]
    assert list(words._python('log("who asks")\nname("behind")\n', messages=True)) == [(1, "who asks")]


def test_code_in_documents_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("`behind`\n```\nbehind\n```\nIt is behind, beHind\nall at\nonce.\n")
    assert words.search(path, PATTERN) == [(5, "beHind"), (5, "behind"), (6, "at once")]
    path.write_text(f"{words.GENERATED} from the code. -->\nbehind\n")
    assert words.search(path, PATTERN) == []


def test_the_number_of_a_file_may_only_fall() -> None:
    place = (3, "behind")
    assert words.compare({"a": [place], "b": []}, {"a": 1}) == []
    more, = words.compare({"a": [place, (9, "at once")]}, {"a": 1})
    assert more.startswith("a: 2 phrases of the right column of docs/reference/glossary.md, 1 are allowed (3: behind,")
    fewer, = words.compare({"a": []}, {"a": 1})
    assert fewer.endswith("1 are allowed, run tools/check_words.py --update")
