"""The JSON Schema of the job file, for editors that complete and check it."""

from __future__ import annotations

from typing import Any

from orchestrator.jobfile.toml_models import JobFile


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a job file, generated from
    :mod:`orchestrator.jobfile.toml_models`.
    """
    schema = JobFile.model_json_schema()
    for table in (schema, *schema["$defs"].values()):
        table["description"] = " ".join(table["description"].split())
        for key in table["properties"].values():
            if key.get("default", ...) is None:  # which TOML does not have
                del key["default"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Orchestrator job file",
    }
