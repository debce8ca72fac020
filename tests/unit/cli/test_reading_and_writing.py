"""Each command says in its help whether it changes the directory; the lists of `command_lists` have all of them."""

import inspect

import pytest
from command_lists import (
    READING,
    READS,
    WITHOUT_STORE,
    WRITES,
    WRITING,
    WRITING_WITH,
    every_command,
)


def test_every_command_is_in_one_list():
    assert {*READING} | WRITING | WITHOUT_STORE == {*every_command()}
    assert len(READING) + len(WRITING) + len(WITHOUT_STORE) == len(every_command())
    assert {*WRITING_WITH} <= {*READING}


@pytest.mark.parametrize("name", every_command())
def test_the_help_says_whether_the_directory_changes(name):
    text = " ".join(inspect.cleandoc(every_command()[name].help or "").split()).lower()
    if name in WITHOUT_STORE:
        assert READS not in text
        assert WRITES not in text
        return
    assert (READS in text) is (name in READING)
    assert (WRITES in text) is (name in WRITING or name in WRITING_WITH)
    assert WRITING_WITH.get(name, "") in text
