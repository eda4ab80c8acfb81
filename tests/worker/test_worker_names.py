"""What a worker is called and labelled: nothing that a store could not hold or a screen not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.errors import UserError
from ostinato.worker.config import WorkerConfig


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"worker_name": "a\0b"}, "INVALID_VALUE", "worker_name"),
        ({"worker_name": "a\nb"}, "INVALID_VALUE", "worker_name"),
        ({"worker_name": "a\ud800"}, "INVALID_VALUE", "worker_name"),
        ({"worker_name": "x" * 201}, "INVALID_VALUE", "worker_name"),
        ({"worker_name": ""}, "INVALID_SETTING", "worker_name"),
        ({"labels": {"a\0b": "c"}}, "INVALID_NAME", "labels"),
        ({"labels": {"a": "b\0c"}}, "INVALID_VALUE", "labels.a"),
    ],
)
def test_c157_a_worker_with_an_unusable_name_or_label_is_refused(
    changes: dict[str, object], code: str, field: str
) -> None:
    settings = {
        "worker_name": "w",
        "scheduler": "node",
        "capacity": {},
        "data_dir": Path("unused"),
        **changes,
    }
    with pytest.raises(UserError) as caught:
        WorkerConfig(**settings).validate()  # type: ignore[arg-type]  # chosen per case
    assert (caught.value.code, caught.value.field) == (code, field)


@pytest.mark.parametrize("name", ["host-1.example.org", "Büro 3", "w", "x" * 200])
def test_any_printable_name_is_taken(name: str) -> None:
    config = WorkerConfig(worker_name=name, scheduler="node", capacity={}, data_dir=Path("unused"))
    assert config.validate().worker_name == name
