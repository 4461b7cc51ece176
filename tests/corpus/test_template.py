from __future__ import annotations

import pytest

from easysteer_data.corpus.template import Template
from easysteer_data.errors import SettingsError


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{question}\nAnswer: {answer}", "Why? \nAnswer:  (A)"),
        ("{answer}{answer}", " (A) (A)"),
        ("  {question}\t", "  Why? \t"),
        ('{{"q": "{question}"}}', '{"q": "Why? "}'),
        ("{Best Answer}", "none"),
        ("{a.b} {c[0]}", "dot index"),
    ],
)
def test_columns_are_put_in_exactly_and_a_name_is_all_between_the_braces(template: str, prompt: str) -> None:
    columns = {"question": "Why? ", "answer": " (A)", "Best Answer": "none", "a.b": "dot", "c[0]": "index"}
    assert Template.parse(template).render(columns.__getitem__) == prompt


@pytest.mark.parametrize("value", ["{question}", "{", "}}", "%s", "{0.__class__}"])
def test_braces_inside_a_value_are_plain_text(value: str) -> None:
    assert Template.parse("Q: {question}").render({"question": value}.__getitem__) == f"Q: {value}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{question", "write {{ for a brace"),
        ("question}", "write {{ for a brace"),
        ("{}", "write {column} with the name alone"),
        ("{question!r}", "write {column} with the name alone"),
        ("{question:>10}", "write {column} with the name alone"),
        ("no column", "names no column"),
        ("", "names no column"),
    ],
)
def test_a_template_that_is_not_text_and_columns_is_refused(template: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Template.parse(template)
    assert repr(template) in str(raised.value)
    assert message in str(raised.value)
