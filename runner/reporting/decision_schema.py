"""The schema of decision.json: `python -m runner.reporting.decision_schema` prints it as JSON Schema, `--text` as a table.

Version 1. A script reads `schema` first and refuses a version that it does not know; keys are only ever added within one."""

import json
import sys
from typing import Any

from runner.records.decision import Decision


def decision_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of decision.json; `$id` carries the version."""
    schema = Decision.model_json_schema(by_alias=True)
    version = Decision.model_fields["schema_version"].default
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"decision-v{version}", "version": version, **schema}


def as_text(schema: dict[str, Any]) -> str:
    """One line a key: object.key, type, whether it is always there, description."""
    lines = [f"decision.json, schema version {schema['version']}", ""]
    objects = {"Decision": schema, **schema.get("$defs", {})}
    for name, content in objects.items():
        about = " ".join(str(content.get("description", "")).split())
        lines.append(f"{name}: {about}" if about else name)
        required = set(content.get("required", []))
        for key, value in content.get("properties", {}).items():
            mark = "" if key in required else ", optional"
            meaning = f"  {value['description']}" if "description" in value else ""
            lines.append(f"  {key}: {_type(value)}{mark}{meaning}")
        lines.append("")
    return "\n".join(lines)


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return str(value["$ref"]).rsplit("/", 1)[1]
    if "anyOf" in value:
        return " or ".join(_type(item) for item in value["anyOf"])
    if "enum" in value:
        return " | ".join(str(item) for item in value["enum"])
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"mapping to {_type(value['additionalProperties'])}"
    return str(value.get("type", "any"))


def main() -> None:
    schema = decision_schema()
    print(as_text(schema) if "--text" in sys.argv[1:] else json.dumps(schema, indent=1))


if __name__ == "__main__":
    main()
