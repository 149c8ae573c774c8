"""What an older release has pickled is read back with the fields that are new since."""

import pickle
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.config import WorkloadConfig
from deployments.config_fields import Section
from hybrid_serve.negotiation.store import MemoryStore
from hybrid_serve.rollout.ledger import Ledger
from hybrid_serve.rollout.requests import first_deployed
from hybrid_serve.rollout.state import Generation
from tests.generations import planned_for, replica_config
from tests.rollout_fleet import APP, offer, pool_offer


def of_an_older_release(section: Section, *fields: str) -> Any:
    """A copy that was made when these fields were not there."""
    older = copy(section)
    for field in fields:
        del older.__dict__[field]
        older.__pydantic_fields_set__.discard(field)
    return older


def test_a_field_that_is_new_since_has_its_default_and_is_not_set() -> None:
    written = WorkloadConfig.model_validate({"contexts": [{"tokens": 100}], "prefer": "speed"})
    assert pickle.loads(pickle.dumps(written)) == written
    read: WorkloadConfig = pickle.loads(pickle.dumps(of_an_older_release(written, "prefer")))
    assert read == WorkloadConfig.model_validate({"contexts": [{"tokens": 100}]})
    assert read.prefer == "capacity" and read.model_fields_set == {"contexts"}
    assert read.model_dump() == {"contexts": ({"tokens": 100, "weight": 1.0},), "prefer": "capacity"}
    with pytest.raises(ValidationError):
        read.prefer = "speed"


def test_a_generation_that_an_older_release_has_kept_is_planned_for(pair_folder: Path) -> None:
    config = replica_config(pair_folder, "g1")
    older = replace(config, workload=of_an_older_release(config.workload, "prefer"))
    pool = replace(pool_offer(), config=older)
    kept = offer("one", {"a": pool}, 1.0)
    store = MemoryStore()
    app = first_deployed(APP, Generation.of(kept, 1, "Ray Serve", 1.0), 1.0).app
    Ledger(store).commit(app, (), kept)
    read = Ledger(store).offer(app, 1).pools["a"].config
    assert planned_for(read).answer == planned_for(config).answer
