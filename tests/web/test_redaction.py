"""What a task marked as secret is masked on pages, whatever its name and whoever looks."""

from __future__ import annotations

import pytest

from holdfast.redact import REDACTED_HEADER
from holdfast.testing import make_job

pytest.importorskip("starlette", reason="the extra holdfast[web] is not installed")

from holdfast.web.auth import Identity, Role
from holdfast.web.redaction import MASK, Redaction

PAYLOAD = b'{"order": 7, "diagnosis": "flu", "people": [{"name": "Ann", "born": 1970}]}'
HEADERS = {REDACTED_HEADER: [["diagnosis"], ["people", "*", "born"]]}


@pytest.mark.parametrize("role", Role)
def test_marked_fields_are_masked_for_every_role(role: Role) -> None:
    job = make_job("visit", PAYLOAD, headers=HEADERS)
    shown = Redaction(viewers_see_values=True).payload(job, Identity("ann", role))
    assert shown.masked
    assert "flu" not in shown.html
    assert "1970" not in shown.html
    assert "Ann" in shown.html


def test_an_edit_keeps_the_values_that_were_masked() -> None:
    job = make_job("visit", PAYLOAD, headers=HEADERS)
    redaction = Redaction()
    text = redaction.editable(job)
    assert text is not None
    assert MASK in text
    assert "flu" not in text
    restored = redaction.restored(text.replace("7", "8"), PAYLOAD)
    assert restored == PAYLOAD.replace(b"7,", b"8,")


def test_a_payload_without_marks_is_shown_as_it_is() -> None:
    shown = Redaction().payload(make_job("visit", PAYLOAD), Identity("ann", Role.OPERATOR))
    assert not shown.masked
    assert "flu" in shown.html
