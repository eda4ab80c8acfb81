"""The same fault has the same code, the same words and names the same field, whoever is asked."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from support.surfaces import Surfaces, Told, declare, plain_field, sdk_told
from surfaces.document_faults import DOCUMENT_FAULTS


def agree(told: dict[str, Told | None], *, code: str, field: str, made_by_sdk: bool = False) -> None:
    """Every surface has refused, and with one voice."""
    said = {
        way: None
        if one is None
        else (
            one.code,
            plain_field(one.field, made_by_sdk=made_by_sdk and way.startswith("sdk")),
            one.message,
            one.hint,
        )
        for way, one in told.items()
    }
    first = next(iter(said.values()))
    assert first is not None, said
    assert said == dict.fromkeys(said, (code, field, *first[2:]))


def yaml_of(value: Any) -> str:
    """JSON, which is YAML too, but for numbers that only YAML has."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {yaml_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(yaml_of, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf"
    return json.dumps(value)


def has_json(value: Any) -> bool:
    """Whether JSON can say it."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", DOCUMENT_FAULTS)
def test_fault_of_a_definition(surfaces: Surfaces, name: str) -> None:
    fault = DOCUMENT_FAULTS[name]
    entry = dict(fault.entry)
    document = {"version": 1, "tasks": [entry]}
    before = surfaces.written()
    told: dict[str, Told | None] = {"yaml": surfaces.apply_told(yaml_of(document))}
    if has_json(entry):
        told["put"] = surfaces.rest_told("PUT", "/namespaces/default/tasks/wrong", body=entry)
        told["apply"] = surfaces.rest_told("POST", "/apply", body=document)
    if fault.in_sdk:
        told["sdk"] = sdk_told(lambda: declare(entry))
    assert surfaces.written() == before
    agree(told, code=fault.code, field=fault.field, made_by_sdk="triggers" in entry)
